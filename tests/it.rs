//! Every integration test in one binary: a second one would link everything again.
#![allow(
    clippy::unwrap_used,
    clippy::print_stderr,
    reason = "a test that cannot go on has failed, one that is skipped says so"
)]

mod support;

mod broken;
mod chat;
mod chat_config;
mod checkpoints;
mod cli;
mod demo;
mod determinism;
mod fixtures;
mod golden;
mod gptq;
mod hostile;
mod http;
mod overrides;
mod packing;
mod plain;
mod publish;
mod resume;
mod rewind;
mod schemes;
mod sources;
mod text;
mod tidy;
mod tvm;
mod verify;
