//! A bundle becomes logits and text: on WebGPU, or on the CPU reference that is its oracle.

pub mod answer;
pub mod bundle;
pub mod engine;
pub mod executor;
pub mod generate;
pub mod gpu;
pub mod kernels;
pub mod packed;
pub mod plan;
pub mod reference;
pub mod source;
pub mod tables;
pub mod text;
pub mod verify;
