//! Adapters, and the device that is opened on one.

use std::sync::{Arc, Mutex, PoisonError};

use super::caps::{Caps, Feature};
use super::error::GpuError;
use super::readback::awaited;
use super::trust;

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

/// An adapter and what it could do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub adapter: Adapter,
    /// Everything that it offers.
    pub offers: Caps,
    /// Whether times can be measured on it.
    pub timestamps: bool,
    /// Cooperative matrices as `f16 16x16x16 f32`: type of the factors, M, N and K, type of the sums.
    pub cooperative_matrices: Vec<String>,
}

/// Every adapter of this machine, the preferred one first.
pub async fn adapters() -> Vec<Listed> {
    found().await.iter().map(Listed::of).collect()
}

impl Listed {
    fn of(adapter: &wgpu::Adapter) -> Self {
        let matrices = adapter.cooperative_matrix_properties();
        Self {
            adapter: Adapter::of(&adapter.get_info()),
            offers: Caps::of(adapter),
            timestamps: adapter.features().contains(wgpu::Features::TIMESTAMP_QUERY),
            cooperative_matrices: matrices.iter().map(matrix_text).collect(),
        }
    }
}

fn matrix_text(matrix: &wgpu::CooperativeMatrixProperties) -> String {
    let wgpu::CooperativeMatrixProperties { m_size, n_size, k_size, ab_type, cr_type, .. } = matrix;
    format!("{ab_type:?} {m_size}x{n_size}x{k_size} {cr_type:?}").to_lowercase()
}

/// An open device.
#[derive(Clone, Debug)]
pub struct Gpu {
    pub(super) device: wgpu::Device,
    pub(super) queue: wgpu::Queue,
    adapter: Adapter,
    caps: Caps,
    timestamps: bool,
    fault: Arc<Mutex<Option<Fault>>>,
}

/// An error in words: `wgpu::Error` itself cannot change threads in a browser.
#[derive(Clone, Debug)]
enum Fault {
    OutOfMemory,
    Refused(String),
    Lost(String),
}

impl Gpu {
    /// Opens the preferred adapter with no more than `ceiling`; without one, with all its limits and nothing optional.
    pub async fn open(ceiling: Option<Caps>) -> Result<Self, GpuError> {
        let found = found().await.into_iter().next().ok_or(GpuError::NoAdapter)?;
        let adapter = Adapter::of(&found.get_info());
        let caps = granted(Caps::of(&found), ceiling.unwrap_or(Caps::auto()), &adapter.name)?;
        // They change nothing but what can be measured.
        let times = found.features() & wgpu::Features::TIMESTAMP_QUERY;
        let request = wgpu::DeviceDescriptor {
            label: Some("packlight"),
            required_features: caps.features() | times,
            required_limits: caps.limits(&found.limits()),
            experimental_features: trust::experimental(caps),
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
        Ok(Self { device, queue, adapter, caps, timestamps: !times.is_empty(), fault })
    }

    /// The same device, said to have other subgroups than it has.
    #[cfg(test)]
    pub(super) fn claiming(mut self, subgroups: Feature<super::SubgroupSizes>) -> Self {
        self.caps.subgroups = subgroups;
        self
    }

    /// What was opened.
    pub fn adapter(&self) -> &Adapter {
        &self.adapter
    }

    /// What kernels may rely on.
    pub fn caps(&self) -> Caps {
        self.caps
    }

    /// Whether times can be taken on the device.
    pub(super) fn has_timestamps(&self) -> bool {
        self.timestamps
    }

    /// The first error since the last check, if any: uploads and submissions are checked after the fact.
    pub(super) fn check(&self, doing: &str) -> Result<(), GpuError> {
        let mut kept = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        let fault = kept.clone();
        // A lost device stays lost.
        kept.take_if(|fault| !matches!(fault, Fault::Lost(_)));
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

    /// Waits until everything that was submitted is done, in a browser too.
    pub(crate) async fn settle(&self, doing: &str) -> Result<(), GpuError> {
        let (done, is_done) = awaited();
        self.queue.on_submitted_work_done(move || done(()));
        self.wait(None, doing)?;
        is_done.await;
        self.check(doing)
    }

    /// Runs `create` at once; the future waits for the device's verdict on it.
    pub(super) fn scoped<T, C: FnOnce() -> T>(
        &self,
        doing: &'static str,
        create: C,
    ) -> impl Future<Output = Result<T, GpuError>> + use<T, C> {
        let memory = self.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let internal = self.device.push_error_scope(wgpu::ErrorFilter::Internal);
        let validation = self.device.push_error_scope(wgpu::ErrorFilter::Validation);
        // Scopes are a stack: the last one pushed is popped first.
        let value = create();
        let validation = validation.pop();
        let internal = internal.pop();
        let memory = memory.pop();
        async move {
            // Out of memory comes first: the validation errors that follow from it say less.
            for error in [memory.await, internal.await, validation.await] {
                error.map_or(Ok(()), |error| Err(Fault::from(error).while_doing(doing)))?;
            }
            Ok(value)
        }
    }
}

/// What of an adapter's offers is used below a ceiling. Without subgroups there are other kernels, for the same results;
/// those without f16 are what `+f16` asks to be rid of, so there it is an error.
fn granted(offers: Caps, ceiling: Caps, adapter: &str) -> Result<Caps, GpuError> {
    let caps = offers.capped(ceiling);
    match caps.f16 {
        Feature::Missing => Err(GpuError::NoF16 { adapter: adapter.into() }),
        Feature::Off | Feature::On(()) => Ok(caps),
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

/// Later faults are mostly consequences of the first, and all of them of the loss of the device.
fn keep_first(slot: &Mutex<Option<Fault>>, fault: Fault) {
    let mut kept = slot.lock().unwrap_or_else(PoisonError::into_inner);
    if kept.is_none() || matches!(fault, Fault::Lost(_)) {
        *kept = Some(fault);
    }
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
    /// Whether it is known to be a GPU; browsers do not tell.
    pub(crate) fn is_hardware(&self) -> bool {
        matches!(self.device_type, "discrete GPU" | "integrated GPU")
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f16_that_is_asked_for_and_missing_is_an_error() {
        let bare = Caps { f16: Feature::Missing, subgroups: Feature::Missing, ..Caps::floor() };
        let granted = |words: &str| granted(bare, words.parse().expect("a list"), "Bare");
        let error = granted("+f16").expect_err("has none");
        assert!(error.to_string().contains("`Bare`") && error.to_string().contains("+f16"));
        assert!(error.hint().is_some_and(|hint| hint.contains("packlight devices")));
        assert!(granted("auto").is_ok_and(|caps| caps.f16 == Feature::Off));
        assert!(granted("+subgroups").is_ok_and(|caps| caps.subgroups == Feature::Missing));
    }

    #[test]
    fn running_out_of_memory_has_an_error_of_its_own() {
        let error = wgpu::Error::OutOfMemory { source: "no more".into() };
        let error = Fault::from(error).while_doing("allocating weights");
        assert!(matches!(error, GpuError::OutOfMemory { .. }));
        assert!(error.to_string().contains("allocating weights"));
        assert!(error.hint().is_some_and(|hint| hint.contains("-n")));
    }

    #[test]
    fn the_loss_of_a_device_explains_whatever_else_failed() {
        let slot = Mutex::new(None);
        keep_first(&slot, Fault::Refused("first".into()));
        keep_first(&slot, Fault::Refused("second".into()));
        let kept = || slot.lock().expect("not poisoned").clone();
        assert!(matches!(kept(), Some(Fault::Refused(why)) if why == "first"));
        keep_first(&slot, Fault::Lost("gone".into()));
        assert!(matches!(kept(), Some(Fault::Lost(_))));
    }
}
