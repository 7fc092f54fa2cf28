//! Bytes, layouts, names and model descriptions: everything that the converter, the packer and the runner agree on.
//!
//! No file is opened here, no thread is started and no GPU is seen, so the crate builds for `wasm32` as it stands.
#![deny(missing_docs)]

pub mod arch;
pub mod calibration;
pub mod chat_config;
pub mod config;
pub mod digest;
pub mod dtype;
pub mod file_name;
pub mod fp8;
pub mod manifest;
pub mod model;
pub mod python_json;
pub mod quant;
pub mod record;
pub mod rope;
pub mod safetensors;

pub use dtype::Dtype;
pub use record::RecordSpec;
