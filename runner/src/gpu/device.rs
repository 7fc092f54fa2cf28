//! Adapters, and the device that is opened on one.

use std::sync::{Arc, Mutex, PoisonError};

use super::caps::Caps;
use super::error::GpuError;

/// An adapter, in words.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct Adapter {
    pub name: String,
    /// `vulkan`, `metal`, `dx12` or `webgpu`.
    pub backend: String,
    /// The driver's name and version.
    pub driver: String,
    /// `discrete GPU`, `integrated GPU`, `virtual GPU`, `CPU` or `unknown`.
    pub device_type: &'static str,
}

/// Every adapter of this machine, the preferred one first.
pub async fn adapters() -> Vec<Adapter> {
    let found = found().await;
    found.iter().map(|adapter| Adapter::of(&adapter.get_info())).collect()
}

/// An open device.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    adapter: Adapter,
    caps: Caps,
    fault: Arc<Mutex<Option<Fault>>>,
}

/// An error in words: `wgpu::Error` itself cannot change threads in a browser.
#[derive(Debug)]
enum Fault {
    OutOfMemory,
    Refused(String),
    Lost(String),
}

impl Gpu {
    /// Opens the preferred adapter with all its limits, or with no more than `ceiling`.
    pub async fn open(ceiling: Option<Caps>) -> Result<Self, GpuError> {
        let found = found().await.into_iter().next().ok_or(GpuError::NoAdapter)?;
        let adapter = Adapter::of(&found.get_info());
        let limits = found.limits();
        let all = Caps::of(&limits);
        let caps = ceiling.map_or(all, |ceiling| all.capped(ceiling));
        let request = wgpu::DeviceDescriptor {
            label: Some("packlight"),
            required_limits: caps.limits(&limits),
            ..wgpu::DeviceDescriptor::default()
        };
        let (device, queue) = found
            .request_device(&request)
            .await
            .map_err(|source| GpuError::Device { adapter: adapter.name.clone(), source })?;

        // Without a handler wgpu panics on errors outside of a scope.
        let fault = Arc::new(Mutex::new(None));
        let slot = Arc::clone(&fault);
        device.on_uncaptured_error(Arc::new(move |error| keep_first(&slot, error.into())));
        let slot = Arc::clone(&fault);
        device.set_device_lost_callback(move |_, why| keep_first(&slot, Fault::Lost(why)));
        Ok(Self { device, queue, adapter, caps, fault })
    }

    /// What was opened.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// What kernels may rely on.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// The first error since the last check, if any: uploads and submissions are checked after the fact.
    pub(super) fn check(&self, doing: &str) -> Result<(), GpuError> {
        let fault = self.fault.lock().unwrap_or_else(PoisonError::into_inner).take();
        fault.map_or(Ok(()), |fault| Err(fault.while_doing(doing)))
    }

    /// Waits for a submission, or for the latest. In a browser it does nothing: the event loop waits there.
    pub(super) fn wait(
        &self,
        submission_index: Option<wgpu::SubmissionIndex>,
        doing: &str,
    ) -> Result<(), GpuError> {
        let poll = wgpu::PollType::Wait { submission_index, timeout: None };
        match self.device.poll(poll) {
            Ok(_) => Ok(()),
            Err(error) => {
                self.check(doing)?;
                Err(GpuError::Lost { doing: doing.into(), why: error.to_string() })
            }
        }
    }

    /// Runs `create` and waits for the device's verdict on it.
    pub(super) async fn scoped<T>(
        &self,
        doing: &str,
        create: impl FnOnce() -> T,
    ) -> Result<T, GpuError> {
        let (value, verdicts) = {
            let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
            let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
            let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
            // Scopes are a stack: the last one pushed is popped first.
            let value = create();
            let validation = validation.pop();
            let internal = internal.pop();
            (value, (memory.pop(), internal, validation))
        };
        let (memory, internal, validation) = verdicts;
        // Out of memory comes first: the validation errors that follow from it say less.
        for error in [memory.await, internal.await, validation.await] {
            error.map_or(Ok(()), |error| Err(Fault::from(error).while_doing(doing)))?;
        }
        Ok(value)
    }
}

impl Fault {
    fn while_doing(self, doing: &str) -> GpuError {
        let doing = doing.into();
        match self {
            Self::OutOfMemory => GpuError::OutOfMemory { doing },
            Self::Refused(why) => GpuError::Refused { doing, why },
            Self::Lost(why) => GpuError::Lost { doing, why },
        }
    }
}

impl From<wgpu::Error> for Fault {
    fn from(error: wgpu::Error) -> Self {
        match error {
            wgpu::Error::OutOfMemory { .. } => Self::OutOfMemory,
            wgpu::Error::Validation { description, .. }
            | wgpu::Error::Internal { description, .. } => Self::Refused(description),
        }
    }
}

/// Later faults are mostly consequences of the first.
fn keep_first(slot: &Mutex<Option<Fault>>, fault: Fault) {
    slot.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(fault);
}

async fn found() -> Vec<wgpu::Adapter> {
    let instance = wgpu::Instance::new(wgpu::InstanceDescriptor::new_without_display_handle());
    let mut found = instance.enumerate_adapters(wgpu::Backends::all()).await;
    found.sort_by_key(|adapter| match adapter.get_info().device_type {
        wgpu::DeviceType::DiscreteGpu => 0,
        wgpu::DeviceType::IntegratedGpu => 1,
        wgpu::DeviceType::VirtualGpu => 2,
        wgpu::DeviceType::Other => 3,
        wgpu::DeviceType::Cpu => 4,
    });
    found
}

impl Adapter {
    fn of(info: &wgpu::AdapterInfo) -> Self {
        Self {
            name: info.name.clone(),
            backend: info.backend.to_string(),
            driver: [info.driver.as_str(), info.driver_info.as_str()].join(" ").trim().to_owned(),
            device_type: match info.device_type {
                wgpu::DeviceType::DiscreteGpu => "discrete GPU",
                wgpu::DeviceType::IntegratedGpu => "integrated GPU",
                wgpu::DeviceType::VirtualGpu => "virtual GPU",
                wgpu::DeviceType::Cpu => "CPU",
                wgpu::DeviceType::Other => "unknown",
            },
        }
    }
}

impl std::fmt::Display for Adapter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}, {}, {})", self.name, self.device_type, self.backend, self.driver)
    }
}
