//! A loaded model: a device, weights and a KV cache that tokens are fed to.

use packlight_formats::model::CHUNK;

use crate::bundle::{Bundle, BundleError};
use crate::executor::{CallError, Capacity, Inputs, Output, Want};
use crate::gpu::{Adapter, Caps, Gpu, GpuError, GpuExecutor};
use crate::plan::Plan;
use crate::reference::{Reference, ReferenceError};
use crate::source::Source;
use crate::tables::HostTables;

/// The most bytes of logits kept from one call.
const LOGITS_BYTES: u32 = 32 << 20;

/// Which device to run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// A GPU where there is one, else the CPU reference.
    Auto,
    /// A GPU or nothing.
    Gpu,
    /// The CPU reference.
    Cpu,
}

/// What the engine ended up running on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RunsOn {
    /// A GPU, which may be a software one.
    Gpu(Adapter),
    /// The CPU reference; why no GPU, where one was looked for.
    Cpu { fallback: Option<String> },
}

impl std::fmt::Display for RunsOn {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Gpu(adapter) => write!(f, "{adapter}"),
            Self::Cpu { .. } => f.write_str("CPU reference"),
        }
    }
}

/// Why a model cannot be loaded or run.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    #[error(transparent)]
    Bundle(#[from] BundleError),
    #[error(transparent)]
    Gpu(#[from] GpuError),
    #[error(transparent)]
    Reference(#[from] ReferenceError),
    #[error(transparent)]
    Call(#[from] CallError),
}

impl EngineError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Bundle(error) => return error.hint(),
            Self::Gpu(GpuError::NoAdapter) => {
                "install a Vulkan driver (Debian: mesa-vulkan-drivers), or use --device cpu".into()
            }
            Self::Gpu(_) => "--device cpu runs the CPU reference instead".into(),
            Self::Call(CallError::ContextFull { .. }) => "shorten the prompt or lower -n".into(),
            _ => return None,
        })
    }
}

#[derive(Debug)]
enum Executor {
    Cpu(Box<Reference>),
    Gpu(Box<GpuExecutor>),
}

impl Executor {
    fn set_length(&mut self, length: u32) {
        match self {
            Self::Cpu(reference) => reference.set_length(length),
            Self::Gpu(gpu) => gpu.set_length(length),
        }
    }
}

/// A model on a device, and the tokens it has seen.
#[derive(Debug)]
pub struct Engine {
    executor: Executor,
    tables: HostTables,
    runs_on: RunsOn,
    capacity: Capacity,
    past: u32,
    turning: Option<Turning>,
}

/// A text that is to be read anew when it grows beyond the length that its positions are turned for.
#[derive(Debug)]
struct Turning {
    point: u32,
    /// Everything fed so far, until then.
    tokens: Vec<u32>,
    is_past: bool,
}

impl Engine {
    /// Loads a bundle onto a device with room for `context` positions. `progress` is told the bytes of each chunk.
    pub async fn load<S: Source>(
        bundle: &Bundle<S>,
        device: Device,
        ceiling: Option<Caps>,
        context: u32,
        progress: impl FnMut(u64),
    ) -> Result<Self, EngineError> {
        let model = bundle.model();
        let plan = Plan::lower(model, bundle.assignment());
        let turning =
            plan.turning_point().map(|point| Turning { point, tokens: Vec::new(), is_past: false });
        let context = context.clamp(1, model.context);
        let chunk = CHUNK.min(context);
        let outputs = (LOGITS_BYTES / 4 / model.vocab).clamp(1, chunk);
        let capacity = Capacity { context, chunk, outputs };
        let tables = bundle.host_tables(&plan)?;
        let gpu = match device {
            Device::Cpu => Err(None),
            Device::Gpu => Ok(Gpu::open(ceiling).await?),
            Device::Auto => Gpu::open(ceiling).await.map_err(|error| Some(error.to_string())),
        };
        let (executor, runs_on) = match gpu {
            Ok(gpu) => {
                let mut executor = GpuExecutor::new(&gpu, &plan, capacity).await?;
                bundle.load::<_, EngineError>(&mut executor, progress).await?;
                executor.finish()?;
                (Executor::Gpu(Box::new(executor)), RunsOn::Gpu(gpu.adapter().clone()))
            }
            Err(fallback) => {
                let mut executor = Reference::new(plan, capacity);
                bundle.load::<_, EngineError>(&mut executor, progress).await?;
                executor.finish()?;
                (Executor::Cpu(Box::new(executor)), RunsOn::Cpu { fallback })
            }
        };
        Ok(Self { executor, tables, runs_on, capacity, past: 0, turning })
    }

    /// What it runs on.
    pub fn runs_on(&self) -> &RunsOn {
        &self.runs_on
    }

    /// Positions seen so far.
    pub fn position(&self) -> u32 {
        self.past
    }

    /// Forgets everything seen so far.
    pub fn reset(&mut self) {
        self.past = 0;
        if let Some(turning) = &mut self.turning {
            turning.tokens.clear();
            turning.is_past = false;
            self.executor.set_length(0);
        }
    }

    /// Feeds tokens, in as many calls as the buffers need, and answers for the last (or all) of them.
    pub async fn feed(&mut self, tokens: &[u32], want: Want) -> Result<Output, EngineError> {
        let end = u64::from(self.past) + tokens.len() as u64;
        if end > u64::from(self.capacity.context) {
            return Err(CallError::ContextFull { end, context: self.capacity.context }.into());
        }
        self.turn(tokens, u32::try_from(end).unwrap_or(u32::MAX)).await?;
        self.read(tokens, want).await
    }

    /// Reads what came before once more where `end` tokens need other rotary tables than it had.
    async fn turn(&mut self, tokens: &[u32], end: u32) -> Result<(), EngineError> {
        let Some(turning) = self.turning.as_mut().filter(|turning| !turning.is_past) else {
            return Ok(());
        };
        if end <= turning.point {
            turning.tokens.extend(tokens);
            return Ok(());
        }
        turning.is_past = true;
        let before = std::mem::take(&mut turning.tokens);
        self.executor.set_length(end);
        self.past = 0;
        if !before.is_empty() {
            self.read(&before, Want::Nothing).await?;
        }
        Ok(())
    }

    /// Reads tokens as they follow what is cached.
    async fn read(&mut self, tokens: &[u32], want: Want) -> Result<Output, EngineError> {
        let chunk =
            if want == Want::AllLogits { self.capacity.outputs } else { self.capacity.chunk };
        let mut chunks = tokens.chunks(chunk as usize).peekable();
        let mut logits = Vec::new();
        let mut last = Err(CallError::NoTokens.into());
        while let Some(tokens) = chunks.next() {
            let want = if chunks.peek().is_some() && want != Want::AllLogits {
                Want::Nothing
            } else {
                want
            };
            let output = self.forward(tokens, want).await?;
            self.past += u32::try_from(tokens.len()).unwrap_or(u32::MAX);
            last = Ok(match output {
                Output::Logits(some) if want == Want::AllLogits => {
                    logits.extend(some);
                    Output::Nothing
                }
                output => output,
            });
        }
        if want == Want::AllLogits && last.is_ok() { Ok(Output::Logits(logits)) } else { last }
    }

    async fn forward(&mut self, tokens: &[u32], want: Want) -> Result<Output, EngineError> {
        let rows = self.tables.rows(tokens).await.map_err(BundleError::from)?;
        let inputs = Inputs { tokens, rows: &rows };
        Ok(match &mut self.executor {
            Executor::Cpu(reference) => reference.forward(inputs, self.past, want)?,
            Executor::Gpu(gpu) => gpu.forward(inputs, self.past, want).await?,
        })
    }
}
