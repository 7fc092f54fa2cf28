//! A checkpoint becomes an ordered stream of records.
//!
//! [`Checkpoint::open`] reads headers only, [`Conversion::plan`] lists every fault that can be known, and
//! [`Conversion::stream`] quantises by row bands. Nothing is ever written into the checkpoint's folder.

mod band;
mod check;
mod checkpoint;
mod compensate;
mod element;
mod encode;
mod error;
mod map;
mod order;
mod original;
mod overrides;
mod scales;
mod stream;

pub use check::{Conversion, PlannedWeight};
pub use checkpoint::{Checkpoint, WeightFile};
pub use compensate::{Compensated, Compensator};
pub use error::{ConvertError, Fault};
pub use original::Original;
pub use overrides::{OverrideError, OverrideRule};
pub use stream::{Piece, StreamOptions};
