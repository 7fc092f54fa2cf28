//! A bundle becomes logits and text: on WebGPU, or on the CPU reference that is its oracle.

pub mod executor;
pub mod gpu;
pub mod kernels;
pub mod plan;
pub mod reference;
