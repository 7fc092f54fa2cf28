//! The runner in a browser: what the page's worker cannot do by itself. It fetches, caches and hashes; here manifests are
//! understood and the model runs. What crosses the border is bytes, and JSON as text.

mod failure;
mod files;

use std::ops::ControlFlow;

use js_sys::Function;
use packlight_formats::chat_config::Message;
use packlight_formats::manifest::Packlight;
use packlight_runner::answer::{Limit, Manner};
use packlight_runner::bundle::{Bundle, Trust};
use packlight_runner::engine::{Device, Engine};
use packlight_runner::gpu::{Gpu, GpuError, GpuExecutor, Placement, largest_capacity};
use packlight_runner::plan::Plan;
use packlight_runner::text::{Date, Sampling, Text};
use serde_json::json;
use wasm_bindgen::JsValue;
use wasm_bindgen::prelude::wasm_bindgen;

use failure::{Failure, plain, unreadable};
use files::{Files, HostFiles};

/// `packlight.json`, validated: its JSON is what docs/packlight-json.md says, and its files make up a whole bundle.
#[wasm_bindgen]
pub struct Manifest(Packlight);

#[wasm_bindgen]
impl Manifest {
    /// From its bytes.
    #[wasm_bindgen(constructor)]
    pub fn new(json: &[u8]) -> Result<Manifest, JsValue> {
        Ok(Self(Packlight::parse(json).map_err(unreadable)?))
    }

    /// Whether this device can run the model with room for `context` tokens, before a byte of it is downloaded.
    pub async fn check(&self, context: u32) -> Result<(), JsValue> {
        let Some(about) = &self.0.about else { return Ok(()) };
        let caps = Gpu::open(None).await.map_err(Failure::from)?.caps();
        let assignment = about.assignment().map_err(unreadable)?;
        let plan = Plan::lower(&about.model, &assignment);
        Placement::new(&plan, &caps).map_err(|error| Failure::from(GpuError::from(error)))?;
        let fits = largest_capacity(&plan, &caps).context;
        if fits < context.min(about.model.context) {
            let message = format!("this GPU has room for no more than {fits} tokens of context");
            return Err(Failure::new(&message, Some("choose a shorter context")).into());
        }
        Ok(())
    }
}

/// A model on the GPU that can be talked to.
#[wasm_bindgen(getter_with_clone)]
pub struct Chat {
    engine: Engine,
    text: Text,
    /// What was loaded: `{architecture, sha256, notes, weight_bytes, context, caps, kernels}`.
    pub about: String,
}

#[wasm_bindgen]
impl Chat {
    /// Loads a bundle with room for at most `context` tokens. Where `files` compares hashes itself, it is not done again.
    /// `seconds` since 1970 give the date to chat templates that ask; `progress` is told bytes that went to the GPU.
    pub async fn load(
        files: Files,
        verified: bool,
        context: u32,
        seconds: u32,
        progress: Function,
    ) -> Result<Chat, JsValue> {
        // Without a manifest there are MD5 sums of shards, which only a reader of whole shards can compare.
        let trust = if verified { Trust::Everything } else { Trust::Nothing };
        let bundle = Bundle::open(HostFiles(files), trust).await.map_err(Failure::from)?;
        let no_tokenizer = || {
            Failure::new(&"the bundle has no tokenizer.json", Some("it can only run on token ids"))
        };
        let text = Text::of(&bundle).await.map_err(plain)?.ok_or_else(no_tokenizer)?;
        let text = text.with_date(Date::from_unix_seconds(seconds.into()));
        let engine = Engine::load(&bundle, Device::Gpu, None, context, |bytes| {
            // A page that fails to show progress is no reason to stop.
            progress.call1(&JsValue::NULL, &JsValue::from_f64(bytes as f64)).ok();
        });
        let engine = engine.await.map_err(Failure::from)?;
        let about = json!({
            "architecture": bundle.model().architecture,
            "sha256": bundle.sha256(),
            "notes": bundle.notes(),
            "weight_bytes": bundle.weight_bytes(),
            "context": engine.context(),
            "caps": engine.caps(),
            "kernels": engine.gpu().map(GpuExecutor::kernels),
        });
        Ok(Self { about: about.to_string(), engine, text })
    }

    /// Answers a conversation, `[{role, content}]`, with at most so many tokens, chosen as `sampling` says (what it leaves
    /// out is as for the likeliest token); `hear` is called with each piece of text, with none while the prompt is
    /// read, and breaks off by returning true. Returns `{tokens, text, finish, prompt_tokens, cached_tokens, prefill_s, decode_s, tokens_per_s}`.
    pub async fn answer(
        &mut self,
        messages: &str,
        max_tokens: Option<u32>,
        sampling: &str,
        hear: Function,
    ) -> Result<String, JsValue> {
        let messages: Vec<Message> = serde_json::from_str(messages).map_err(plain)?;
        let sampling: Sampling = serde_json::from_str(sampling).map_err(plain)?;
        let prompt = self.text.conversation(&messages).map_err(plain)?;
        let (used, context) = (prompt.len(), self.engine.context());
        let limit = Limit::after(used, context, max_tokens).ok_or_else(|| {
            let message = format!(
                "the conversation has {used} tokens, which leaves no room for an answer in a context of {context}"
            );
            Failure::new(&message, Some("begin a new conversation, or load with a longer context"))
        })?;
        let manner = Manner { text: Some(&self.text), stops: self.text.stops(), sampling };
        let hear = |piece: &str| match hear.call1(&JsValue::NULL, &JsValue::from_str(piece)) {
            Ok(stop) if stop.is_falsy() => ControlFlow::Continue(()),
            // Nobody listens any more.
            Ok(_) | Err(_) => ControlFlow::Break(()),
        };
        let answer = manner.answer(&mut self.engine, &prompt, limit, hear).await;
        let answer = answer.map_err(Failure::from)?;
        let made = &answer.generation;
        Ok(json!({
            "tokens": made.tokens,
            "text": answer.text,
            "finish": answer.end,
            "prompt_tokens": used,
            "cached_tokens": made.cached,
            "prefill_s": made.prefill.as_secs_f64(),
            "decode_s": made.decode.as_secs_f64(),
            "tokens_per_s": made.tokens_per_second(),
        })
        .to_string())
    }
}

/// Panics are faults of this program; their message goes where a console shows it, before the worker stops.
#[wasm_bindgen(start)]
pub fn start() {
    std::panic::set_hook(Box::new(|info| wasm_bindgen::throw_str(&info.to_string())));
}
