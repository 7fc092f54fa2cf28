//! Bytes on their way to the device. wgpu holds what is written to a buffer in staging memory until a submission that
//! came after it is done; waiting for earlier ones keeps that memory bounded whatever a tensor's size.

use super::device::Gpu;
use super::error::GpuError;
use super::readback::{Awaited, awaited};

/// The most bytes that wgpu holds for an upload. WebGPU implementations may allow 128 MiB at once; less is as fast. Tabs
/// of a browser have less memory to spare.
pub(super) const IN_FLIGHT_BYTES: u64 =
    if cfg!(target_arch = "wasm32") { 16 << 20 } else { 64 << 20 };

/// What is in flight: the bytes since the last submission, and those of the one before it.
pub(super) struct Flow {
    /// Half of the limit.
    window: u64,
    since: u64,
    before: u64,
    submitted: Option<(wgpu::SubmissionIndex, Awaited<()>)>,
    /// The submission that has to be done before more is written, where it could not be waited for at once.
    owed: Option<Awaited<()>>,
}

impl Flow {
    /// At most `limit` bytes in flight, at least eight.
    pub(super) fn new(limit: u64) -> Self {
        Self { window: (limit / 8 * 4).max(4), since: 0, before: 0, submitted: None, owed: None }
    }

    /// Writes bytes to a buffer, slice by slice. The offset is a multiple of four; where the length is none, zeros
    /// follow.
    pub(super) fn write(
        &mut self,
        gpu: &Gpu,
        (buffer, mut offset): (&wgpu::Buffer, u64),
        bytes: &[u8],
        record: &str,
    ) -> Result<(), GpuError> {
        let slice = usize::try_from(self.window).unwrap_or(usize::MAX);
        for bytes in bytes.chunks(slice) {
            let (words, rest) = bytes.split_at(bytes.len() / 4 * 4);
            if self.admit(bytes.len().next_multiple_of(4) as u64) {
                self.wait(gpu, record)?;
            }
            gpu.queue.write_buffer(buffer, offset, words);
            offset += words.len() as u64;
            if !rest.is_empty() {
                let mut last = [0; 4];
                last[..rest.len()].copy_from_slice(rest);
                gpu.queue.write_buffer(buffer, offset, &last);
            }
        }
        Ok(())
    }

    /// Counts a slice; whether everything before it is to be submitted, and the submission before that waited for.
    fn admit(&mut self, bytes: u64) -> bool {
        let is_full = self.since + bytes > self.window;
        if is_full {
            self.before = self.since;
            self.since = 0;
        }
        self.since += bytes;
        is_full
    }

    fn wait(&mut self, gpu: &Gpu, record: &str) -> Result<(), GpuError> {
        let doing = format!("uploading `{record}`");
        let index = gpu.queue.submit([]);
        let (done, is_done) = awaited();
        gpu.queue.on_submitted_work_done(move || done(()));
        if let Some((earlier, is_done)) = self.submitted.replace((index, is_done)) {
            gpu.wait(Some(earlier), &doing)?;
            self.owed = Some(is_done);
        }
        gpu.check(&doing)
    }

    /// Waits for what [`Gpu::wait`] does not wait for in a browser.
    pub(super) async fn settle(&mut self, gpu: &Gpu) -> Result<(), GpuError> {
        let Some(is_done) = self.owed.take() else { return Ok(()) };
        is_done.await;
        gpu.check("uploading weights")
    }
}

impl std::fmt::Debug for Flow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { window, since, before, .. } = self;
        write!(f, "Flow {{ window: {window}, since: {since}, before: {before} }}")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Row 4 of the behaviours: whatever comes, no more than the limit is in flight.
        #[test]
        fn no_more_than_the_limit_is_in_flight(
            limit in 8u64..1000,
            pieces in prop::collection::vec(1u64..2000, 1..40),
        ) {
            let mut flow = Flow::new(limit);
            let window = flow.window;
            for piece in pieces {
                let slices = (0..piece.div_ceil(window)).map(|i| window.min(piece - i * window));
                for slice in slices {
                    let earlier = flow.since;
                    let waits = flow.admit(slice.next_multiple_of(4));
                    prop_assert_eq!(waits, earlier + slice.next_multiple_of(4) > window);
                    prop_assert!(flow.since + flow.before <= limit);
                }
            }
        }
    }
}
