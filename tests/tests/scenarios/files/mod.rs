//! Checkpoints written anew: what comes out runs as before, and a run that ended early loses nothing.
mod broken_off;
mod commands;
mod rounds;
