//! Compiles `cake/v1/*.proto` with a protobuf compiler written in Rust, so that no `protoc` is needed.
use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=cake");
    let descriptors = protox::compile(["cake/v1/worker.proto"], ["."])?;
    tonic_prost_build::configure()
        .bytes(".") // Payloads are views of the received buffer, not copies.
        .compile_fds(descriptors)?;
    Ok(())
}
