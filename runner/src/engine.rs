//! A loaded model: a device, weights and a KV cache that tokens are fed to.

use packlight_formats::model::CHUNK;

use crate::bundle::{Bundle, BundleError};
use crate::executor::{CallError, Capacity, Inputs, NO_TOKEN, Output, Want};
use crate::gpu::{Adapter, Caps, Gpu, GpuError, GpuExecutor, GpuLoader, Timed};
use crate::packed::PackedError;
use crate::plan::Plan;
use crate::reference::{Reference, ReferenceError};
use crate::source::Source;
use crate::tables::HostTables;

/// The most bytes of logits kept from one call.
const LOGITS_BYTES: u32 = 32 << 20;

/// The most tokens of a call where every position is kept.
const LONG_CHUNK: u32 = 512;

/// Tokens that a slow device reads at a time.
const SLOW_STRIDE: u32 = 128;

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
    #[error(
        "no token is the likeliest at position {0}: the model's arithmetic has overflowed or its weights are damaged"
    )]
    NoToken(u32),
}

impl From<PackedError> for EngineError {
    fn from(error: PackedError) -> Self {
        Self::Reference(error.into())
    }
}

impl EngineError {
    /// What the user can do about it.
    pub fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Bundle(error) => return error.hint(),
            Self::Gpu(error) => return error.hint(),
            Self::Call(CallError::ContextFull { .. }) => "shorten the prompt or lower -n".into(),
            Self::NoToken(_) => "`packlight verify --run` finds the first step that goes wrong, `packlight verify` a damaged bundle".into(),
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
    fn remembers(&self, past: u32) -> bool {
        match self {
            Self::Cpu(reference) => reference.remembers(past),
            Self::Gpu(gpu) => gpu.remembers(past),
        }
    }

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
    /// Everything whose keys and values are cached.
    seen: Vec<u32>,
    turning_point: Option<u32>,
    /// Whether positions are turned as those of a longer text.
    turned: bool,
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
        let turning_point = plan.turning_point();
        let context = context.clamp(1, model.context);
        // Rings are as long as the bundle says that they are; without any, longer calls are faster.
        let rings = plan.reach(Capacity { context, chunk: CHUNK.min(context), outputs: 1 });
        let chunk = if rings.is_some() { CHUNK } else { LONG_CHUNK }.min(context);
        let outputs = (LOGITS_BYTES / 4 / model.vocab).clamp(1, chunk);
        let capacity = Capacity { context, chunk, outputs };
        let tables = bundle.host_tables(&plan)?;
        let gpu = match device {
            Device::Cpu => Err(None),
            Device::Gpu => Ok(Gpu::open(ceiling).await?),
            Device::Auto => match Gpu::open(ceiling).await {
                // What was asked for in so many words is not to be passed over.
                Err(error @ GpuError::NoF16 { .. }) => return Err(error.into()),
                opened => opened.map_err(|error| Some(error.to_string())),
            },
        };
        let (executor, runs_on) = match gpu {
            Ok(gpu) => {
                let mut loader = GpuLoader::new(&gpu, &plan, capacity).await?;
                bundle.load::<_, EngineError>(&mut loader, progress).await?;
                let executor = loader.finish().await?;
                (Executor::Gpu(Box::new(executor)), RunsOn::Gpu(gpu.adapter().clone()))
            }
            Err(fallback) => {
                let mut executor = Reference::new(plan, capacity);
                bundle.load::<_, EngineError>(&mut executor, progress).await?;
                executor.finish()?;
                (Executor::Cpu(Box::new(executor)), RunsOn::Cpu { fallback })
            }
        };
        let seen = Vec::new();
        Ok(Self { executor, tables, runs_on, capacity, seen, turning_point, turned: false })
    }

    /// What it runs on.
    pub fn runs_on(&self) -> &RunsOn {
        &self.runs_on
    }

    /// Logits of a position.
    pub fn vocab(&self) -> usize {
        match &self.executor {
            Executor::Cpu(reference) => {
                let plan = reference.plan();
                plan.slot(plan.logits).width as usize
            }
            Executor::Gpu(gpu) => usize::try_from(gpu.vocab()).unwrap_or(usize::MAX),
        }
    }

    /// The GPU that it runs on.
    pub fn gpu(&self) -> Option<&GpuExecutor> {
        match &self.executor {
            Executor::Gpu(gpu) => Some(gpu),
            Executor::Cpu(_) => None,
        }
    }

    /// What tokens look up in tables that no device holds.
    pub(crate) async fn rows(&self, tokens: &[u32]) -> Result<Vec<Vec<f32>>, EngineError> {
        Ok(self.tables.rows(tokens).await.map_err(BundleError::from)?)
    }

    /// The executors of two engines of one plan, a GPU's and the reference.
    pub(crate) fn pair<'a>(
        gpu: &'a mut Self,
        reference: &'a mut Self,
    ) -> Option<(&'a mut GpuExecutor, &'a mut Reference)> {
        match (&mut gpu.executor, &mut reference.executor) {
            (Executor::Gpu(gpu), Executor::Cpu(reference)) => Some((gpu, reference)),
            _ => None,
        }
    }

    #[cfg(test)]
    fn unread(executor: Executor, runs_on: RunsOn, capacity: Capacity) -> Self {
        let (seen, turning_point, tables) = (Vec::new(), None, HostTables::default());
        Self { executor, tables, runs_on, capacity, seen, turning_point, turned: false }
    }

    /// An engine of an executor that is loaded already.
    #[cfg(test)]
    pub(crate) fn of_gpu(gpu: GpuExecutor, capacity: Capacity) -> Self {
        let runs_on = RunsOn::Gpu(gpu.gpu().adapter().clone());
        Self::unread(Executor::Gpu(Box::new(gpu)), runs_on, capacity)
    }

    /// The same of a reference.
    #[cfg(test)]
    pub(crate) fn of_reference(reference: Reference, capacity: Capacity) -> Self {
        let executor = Executor::Cpu(Box::new(reference));
        Self::unread(executor, RunsOn::Cpu { fallback: None }, capacity)
    }

    /// What the GPU's kernels rely on; `None` on the CPU.
    pub fn caps(&self) -> Option<Caps> {
        match &self.executor {
            Executor::Cpu(_) => None,
            Executor::Gpu(gpu) => Some(gpu.caps()),
        }
    }

    /// Positions seen so far.
    pub fn position(&self) -> u32 {
        u32::try_from(self.seen.len()).unwrap_or(u32::MAX)
    }

    /// How many positions there is room for.
    pub fn context(&self) -> u32 {
        self.capacity.context
    }

    /// The longest text whose positions are turned as those of an empty one; once a text is longer, all of them are turned
    /// by other tables, and what came before is read once more.
    pub(crate) fn turning_point(&self) -> Option<u32> {
        self.turning_point
    }

    /// The most tokens of a call.
    pub fn chunk(&self) -> u32 {
        self.capacity.chunk
    }

    /// The most tokens of a prompt that are read without a look at whether to go on: those of a call on a GPU, fewer where
    /// that may take seconds. It is no matter of speed that is measured, so that a text is read alike each time.
    pub(crate) fn stride(&self) -> u32 {
        match &self.runs_on {
            RunsOn::Gpu(adapter) if adapter.is_hardware() => self.capacity.chunk,
            _ => self.capacity.chunk.min(SLOW_STRIDE),
        }
    }

    /// Forgets everything seen so far.
    pub fn reset(&mut self) {
        self.seen.clear();
        if self.turned {
            self.turned = false;
            self.executor.set_length(0);
        }
    }

    /// Forgets what is no beginning of `text`, which is about to be read, and returns how many of its tokens need not be
    /// fed: never all of them, since it is the last one's logits that are wanted.
    ///
    /// This is where it is decided how far back the caches can go: those that hold every position go back to any, rings
    /// as far as their devices say.
    pub fn keep(&mut self, text: &[u32]) -> usize {
        let same = self.seen.iter().zip(text).take_while(|(a, b)| a == b).count();
        let kept = same.min(text.len().saturating_sub(1));
        let long = self.turning_point.is_some_and(|point| text.len() > point as usize);
        if long != self.turned {
            // All positions are turned by other tables, so nothing that is cached can stay.
            self.reset();
            if long {
                self.turned = true;
                self.executor.set_length(u32::try_from(text.len()).unwrap_or(u32::MAX));
            }
            return 0;
        }
        let kept =
            if self.executor.remembers(u32::try_from(kept).unwrap_or(u32::MAX)) { kept } else { 0 };
        self.seen.truncate(kept);
        kept
    }

    /// Feeds tokens, in as many calls as the buffers need, and answers for the last (or all) of them.
    pub async fn feed(&mut self, tokens: &[u32], want: Want) -> Result<Output, EngineError> {
        let end = self.seen.len() as u64 + tokens.len() as u64;
        if end > u64::from(self.capacity.context) {
            return Err(CallError::ContextFull { end, context: self.capacity.context }.into());
        }
        self.turn(u32::try_from(end).unwrap_or(u32::MAX)).await?;
        self.read(tokens, want).await
    }

    /// Reads what came before once more where a text of `end` tokens needs other rotary tables than it had.
    async fn turn(&mut self, end: u32) -> Result<(), EngineError> {
        if self.turned || self.turning_point.is_none_or(|point| end <= point) {
            return Ok(());
        }
        self.turned = true;
        self.executor.set_length(end);
        let before = std::mem::take(&mut self.seen);
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
            self.seen.extend(tokens);
            if want == Want::Nothing {
                // A device that falls behind would be given ever more, and what is only queued cannot be broken off.
                self.settle().await?;
            }
            last = Ok(match output {
                Output::Token(NO_TOKEN) => return Err(EngineError::NoToken(self.position() - 1)),
                Output::Logits(some) if want == Want::AllLogits => {
                    logits.extend(some);
                    Output::Nothing
                }
                output => output,
            });
        }
        if want == Want::AllLogits && last.is_ok() { Ok(Output::Logits(logits)) } else { last }
    }

    /// Waits until what was fed is read.
    async fn settle(&self) -> Result<(), EngineError> {
        match &self.executor {
            Executor::Cpu(_) => Ok(()),
            Executor::Gpu(gpu) => Ok(gpu.gpu().settle("reading the prompt").await?),
        }
    }

    /// How many tokens [`Engine::go_on`] can make at once.
    pub fn ahead(&self) -> u32 {
        match &self.executor {
            Executor::Cpu(_) => 1,
            Executor::Gpu(gpu) => gpu.ahead(),
        }
    }

    /// Feeds a token and returns the likeliest that follows it, the likeliest that follows that one, and so on: at least
    /// one, and at most `count` as far as there is room. All but the last were fed then, too.
    pub async fn go_on(&mut self, token: u32, count: u32) -> Result<Vec<u32>, EngineError> {
        let position = self.position();
        // A text that becomes longer may be turned by other tables.
        let end = match self.turning_point {
            Some(point) if !self.turned => self.capacity.context.min(point),
            _ => self.capacity.context,
        };
        let count = count.min(self.ahead()).min(end.saturating_sub(position));
        match &mut self.executor {
            Executor::Gpu(gpu) if count > 1 => {
                let made = gpu.greedy(&[token], position, count).await?;
                if let Some(fed) =
                    (0..).zip(&made).find_map(|(i, &made)| (made == NO_TOKEN).then_some(i))
                {
                    return Err(EngineError::NoToken(position + fed));
                }
                let fed = made.len().saturating_sub(1);
                self.seen.push(token);
                self.seen.extend(&made[..fed]);
                Ok(made)
            }
            _ => match self.feed(&[token], Want::Argmax).await? {
                Output::Token(token) => Ok(vec![token]),
                Output::Nothing | Output::Logits(_) => Ok(Vec::new()),
            },
        }
    }

    /// Forgets the last `count` tokens.
    pub(crate) fn forget(&mut self, count: usize) {
        self.seen.truncate(self.seen.len().saturating_sub(count));
    }

    /// The times of the dispatches of a call; `None` without a GPU that can take them.
    pub async fn profile(&mut self, tokens: &[u32]) -> Result<Option<Vec<Timed>>, EngineError> {
        let past = self.position();
        let rows = self.rows(tokens).await?;
        let Executor::Gpu(gpu) = &mut self.executor else { return Ok(None) };
        let timed = gpu.profile(Inputs { tokens, rows: &rows }, past).await?;
        self.seen.extend(tokens);
        Ok(timed)
    }

    async fn forward(&mut self, tokens: &[u32], want: Want) -> Result<Output, EngineError> {
        let past = self.position();
        let rows = self.rows(tokens).await?;
        let inputs = Inputs { tokens, rows: &rows };
        Ok(match &mut self.executor {
            Executor::Cpu(reference) => reference.forward(inputs, past, want)?,
            Executor::Gpu(gpu) => gpu.forward(inputs, past, want).await?,
        })
    }
}
