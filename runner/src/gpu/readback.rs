//! The way back: a copy to a mappable buffer, awaited. The same code waits natively and in a browser.

use std::future::poll_fn;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Poll, Waker};

use super::device::Gpu;
use super::error::GpuError;

/// The mappable buffer, kept between calls. It is taken out while in use, so that a call which is dropped half-way
/// leaves no mapped buffer behind for the next.
#[derive(Debug, Default)]
pub(super) struct Readback {
    spare: Option<wgpu::Buffer>,
}

impl Readback {
    /// A buffer of at least `bytes` to copy to.
    pub(super) fn take(&mut self, gpu: &Gpu, bytes: u64) -> wgpu::Buffer {
        self.spare.take().filter(|buffer| buffer.size() >= bytes).unwrap_or_else(|| {
            gpu.device.create_buffer(&wgpu::BufferDescriptor {
                label: Some("readback"),
                size: bytes,
                usage: wgpu::BufferUsages::COPY_DST | wgpu::BufferUsages::MAP_READ,
                mapped_at_creation: false,
            })
        })
    }

    /// Waits for what was submitted and returns the first `bytes` of the buffer.
    pub(super) async fn read<T: bytemuck::Pod>(
        &mut self,
        gpu: &Gpu,
        buffer: wgpu::Buffer,
        bytes: u64,
    ) -> Result<Vec<T>, GpuError> {
        const DOING: &str = "reading the result";
        let refused = |why: String| GpuError::Refused { doing: DOING.into(), why };
        let slice = buffer.slice(..bytes);
        let mapped = map(slice);
        // In a browser this returns at once and the event loop calls back.
        gpu.wait(None, DOING)?;
        let verdict = mapped.await;
        // A device error says more than the mapping that failed because of it.
        gpu.check(DOING)?;
        verdict.map_err(|error| refused(error.to_string()))?;
        let view = slice.get_mapped_range().map_err(|error| refused(error.to_string()))?;
        let values = view.chunks_exact(size_of::<T>()).map(bytemuck::pod_read_unaligned).collect();
        drop(view);
        buffer.unmap();
        self.spare = Some(buffer);
        Ok(values)
    }
}

type Verdict = Result<(), wgpu::BufferAsyncError>;

#[derive(Default)]
struct Mapping {
    verdict: Option<Verdict>,
    waker: Option<Waker>,
}

/// `map_async` as a future.
fn map(slice: wgpu::BufferSlice<'_>) -> impl Future<Output = Verdict> + use<> {
    let mapping = Arc::new(Mutex::new(Mapping::default()));
    let callback = Arc::clone(&mapping);
    slice.map_async(wgpu::MapMode::Read, move |verdict| {
        let mut mapping = callback.lock().unwrap_or_else(PoisonError::into_inner);
        mapping.verdict = Some(verdict);
        if let Some(waker) = mapping.waker.take() {
            waker.wake();
        }
    });
    poll_fn(move |context| {
        let mut mapping = mapping.lock().unwrap_or_else(PoisonError::into_inner);
        mapping.waker = Some(context.waker().clone());
        mapping.verdict.take().map_or(Poll::Pending, Poll::Ready)
    })
}
