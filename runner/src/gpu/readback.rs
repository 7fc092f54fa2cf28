//! The way back: a copy to a mappable buffer, awaited. The same code waits natively and in a browser.

use std::future::poll_fn;
use std::pin::Pin;
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
        let (called, mapped) = awaited();
        slice.map_async(wgpu::MapMode::Read, called);
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

/// What a callback will be told.
pub(super) type Awaited<T> = Pin<Box<dyn Future<Output = T> + Send>>;

struct Call<T> {
    told: Option<T>,
    waker: Option<Waker>,
}

/// A callback, and a future of what it is told. One that is dropped uncalled leaves the future pending.
pub(super) fn awaited<T: Send + 'static>() -> (impl FnOnce(T) + Send + 'static, Awaited<T>) {
    let call = Arc::new(Mutex::new(Call { told: None, waker: None }));
    let callback = Arc::clone(&call);
    let called = move |told| {
        let mut call = callback.lock().unwrap_or_else(PoisonError::into_inner);
        call.told = Some(told);
        if let Some(waker) = call.waker.take() {
            waker.wake();
        }
    };
    let future = poll_fn(move |context| {
        let mut call = call.lock().unwrap_or_else(PoisonError::into_inner);
        call.waker = Some(context.waker().clone());
        call.told.take().map_or(Poll::Pending, Poll::Ready)
    });
    (called, Box::pin(future))
}
