//! File formats that models and blobs come in.

pub mod safetensors;
