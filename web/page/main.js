// The page: what its worker says becomes text, and what its user does becomes messages to the worker.

import { Failure } from "./failure.js";
import { Speed, duration, folder, size } from "./format.js";

const at = (/** @type {string} */ id) => /** @type {any} */ (document.getElementById(id));
const [loadForm, askForm] = [at("load"), at("ask")];

/** What is going on: nothing, a load, an answer, or the cache is looked through. @type {string | null} */
let busy = null;
/** @type {{role: string, content: string}[]} */
let messages = [];
/** Where the answer that is coming is shown. @type {HTMLElement | null} */
let answering = null;
let plan = { bytes: 0, cached: 0 };
let speed = new Speed();

const worker = new Worker(new URL("worker.js", import.meta.url), { type: "module" });
const send = (/** @type {string} */ type, /** @type {object} */ data = {}) => worker.postMessage({ type, ...data });

/** @param {string | null} task */
function setBusy(task) {
  busy = task;
  for (const button of document.querySelectorAll("button")) button.disabled = task !== null;
  at("stop").disabled = task !== "answer";
  at("cancel").disabled = task !== "load";
  at("loading").hidden = task !== "load";
}

/** @param {{message: string, hint?: string} | null} failure */
function show(failure) {
  at("failure").hidden = failure === null;
  at("failure").querySelector("strong").textContent = failure?.message ?? "";
  at("failure").querySelector("p").textContent = failure?.hint ?? "";
  if (failure) at("failure").scrollIntoView({ block: "nearest" });
}

const say = (/** @type {string} */ text) => (at("status").textContent = text);

/** @param {string} text */
function note(text) {
  const item = document.createElement("li");
  item.textContent = text;
  at("notes").append(item);
}

/** @param {[string, string][]} rows */
function describe(rows) {
  const list = at("about").querySelector("dl");
  for (const [term, text] of rows) {
    const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
    dt.textContent = term;
    dd.textContent = text;
    list.append(dt, dd);
  }
  at("about").hidden = false;
}

// Loading.

loadForm.addEventListener("submit", async (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  show(null);
  at("notes").replaceChildren();
  at("about").querySelector("dl").replaceChildren();
  at("about").hidden = true;
  at("chat").hidden = true;
  const { url, context, keep } = loadForm.elements;
  setBusy("load");
  say("Reading the manifest …");
  plan = { bytes: 0, cached: 0 };
  speed = new Speed();
  progress({ received: 0, uploaded: 0 });
  try {
    await requireWebGpu();
    const bundle = folder(url.value.trim(), location.href);
    // Asked for where it is worth it; a browser that says no may delete the download when space is short.
    // It may ask its user, who may let it wait.
    if (keep.checked) navigator.storage?.persist?.().catch(() => {});
    send("load", { url: bundle, keep: keep.checked, context: Number(context.value) });
  } catch (error) {
    failed({ task: "load", message: error.message, hint: error.hint });
  }
});

/** Whether there is a GPU at all, before anything is asked of it. */
async function requireWebGpu() {
  if (!isSecureContext) {
    throw new Failure("this address cannot use WebGPU", "browsers allow it on https:// and on localhost only");
  }
  const gpu = /** @type {any} */ (navigator).gpu;
  if (!gpu) {
    throw new Failure("this browser has no WebGPU", "Chrome, Edge, Firefox and Safari have it in their current versions");
  }
  if (!(await gpu.requestAdapter())) {
    throw new Failure("this browser has WebGPU, but no GPU for it", "update the graphics driver, or look at chrome://gpu or about:support");
  }
}

/** @param {{received: number, uploaded: number}} now */
function progress({ received, uploaded }) {
  const [done, rate] = [plan.cached + received, speed.at(received)];
  const left = plan.bytes - done;
  at("download").value = plan.bytes ? Math.min(done / plan.bytes, 1) : 0;
  at("upload").value = plan.bytes ? uploaded / plan.bytes : 0;
  const parts = [plan.bytes ? `${size(Math.min(done, plan.bytes))} of ${size(plan.bytes)}` : size(received)];
  if (plan.cached > 0) parts.push(`${size(plan.cached)} were here already`);
  if (rate > 0 && left > 0) parts.push(`${size(rate)}/s`, `${duration(left / rate)} left`);
  at("download-text").textContent = parts.join(", ");
  at("upload-text").textContent = plan.bytes ? `${size(uploaded)} of ${size(plan.bytes)}` : size(uploaded);
}

at("cancel").addEventListener("click", () => send("cancel"));

// Talking.

askForm.addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  const { prompt, temperature, tokens } = askForm.elements;
  const content = prompt.value.trim();
  if (busy || !content) return;
  show(null);
  messages.push({ role: "user", content });
  shownMessage("user").textContent = content;
  answering = shownMessage("assistant");
  prompt.value = "";
  setBusy("answer");
  // What is spoken of it is the whole, once it is there.
  at("messages").setAttribute("aria-busy", "true");
  say("Thinking …");
  // Another seed each time, unless the likeliest token is taken anyway.
  const seed = Math.floor(Math.random() * 2 ** 32);
  send("answer", {
    messages,
    tokens: Math.max(1, Math.floor(tokens.value)),
    sampling: { temperature: Number(temperature.value), top_p: 0.95, seed },
  });
});

at("prompt").addEventListener("keydown", (/** @type {KeyboardEvent} */ event) => {
  if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
    event.preventDefault();
    askForm.requestSubmit();
  }
});

/** @param {string} role @returns {HTMLElement} */
function shownMessage(role) {
  const [item, text] = [document.createElement("li"), document.createElement("div")];
  item.className = role;
  item.append(text);
  at("messages").append(item);
  item.scrollIntoView({ block: "nearest" });
  return text;
}

at("stop").addEventListener("click", () => send("stop"));

at("new").addEventListener("click", () => {
  messages = [];
  at("messages").replaceChildren();
  at("prompt").focus();
});

// The cache.

for (const task of ["verify", "free"]) {
  at(task).addEventListener("click", () => {
    show(null);
    setBusy(task);
    say(task === "verify" ? "Hashing the cache …" : "Freeing the cache …");
    send(task);
  });
}

// What the worker says.

/** As if it had not been asked; the question can be changed and sent again. */
function unask() {
  answering?.parentElement?.previousElementSibling?.remove();
  answering?.parentElement?.remove();
  at("prompt").value = messages.pop()?.content ?? "";
  answering = null;
}

/** @param {{task: string, message: string, hint?: string}} failure */
function failed({ task, message, hint }) {
  if (task === "answer" && answering) unask();
  setBusy(null);
  at("messages").removeAttribute("aria-busy");
  say("");
  show({ message, hint });
  // What had the focus may have been hidden, and this is what can be done next.
  (task === "answer" ? at("prompt") : loadForm.elements.url).focus();
}

/** @type {Record<string, (data: any) => void>} */
const heard = {
  described({ scheme, requires }) {
    if (requires) note(`${scheme}: ${size(requires.weight_bytes)} of weights; about ${size(requires.device_bytes)} of GPU memory with ${requires.context} tokens of context.`);
  },
  planned(found) {
    plan = found;
    say(found.cached === found.bytes ? "Loading from the cache …" : "Downloading …");
  },
  progress,
  noted: ({ text }) => note(text),
  loaded({ about, store, memory }) {
    about.notes.forEach(note);
    const kernels = Object.entries(about.kernels).map(([name, count]) => `${name} × ${count}`);
    describe([
      ["Model", `${about.architecture}, ${size(about.weight_bytes)} of weights, ${about.context} tokens of context`],
      ["Bundle", `SHA-256 ${about.sha256}`],
      ["Device", about.device],
      ["Limits", `${size(about.caps.binding_bytes)} a binding, ${size(about.caps.buffer_bytes)} a buffer, ${about.caps.invocations} threads a workgroup`],
      ["Kernels", kernels.join(", ")],
      ["Memory", `${size(memory)} beside the GPU`],
    ]);
    at("chat").hidden = false;
    messages = [];
    at("messages").replaceChildren();
    setBusy(null);
    say(`Ready on ${about.device}.`);
    at("prompt").focus();
    if (store) send("usage");
  },
  piece({ text }) {
    answering?.append(text);
    answering?.scrollIntoView({ block: "nearest" });
  },
  answered({ answer }) {
    // It was stopped before anything was said.
    if (answer.tokens.length === 0) unask();
    else messages.push({ role: "assistant", content: answer.text });
    if (answering) {
      if (answering.textContent !== answer.text) answering.textContent = answer.text;
      const figures = document.createElement("p");
      figures.className = "figures";
      const parts = [`${answer.tokens.length} tokens`, `first after ${answer.prefill_s.toFixed(2)} s`];
      if (answer.tokens_per_s) parts.push(`${answer.tokens_per_s.toFixed(1)} tokens/s`);
      const ends = { length: "as many as were asked for", context: "the context is full", interrupted: "stopped" };
      if (answer.finish in ends) parts.push(ends[/** @type {keyof typeof ends} */ (answer.finish)]);
      figures.textContent = parts.join(", ");
      answering.after(figures);
    }
    answering = null;
    setBusy(null);
    at("messages").removeAttribute("aria-busy");
    say("");
    at("prompt").focus();
  },
  verifying: ({ done, total }) => say(`Hashing the cache: ${size(done)} of ${size(total)}`),
  verified({ chunks, damaged, bytes }) {
    setBusy(null);
    say(damaged === 0
      ? `The cache is whole: ${chunks} chunks, ${size(bytes)}.`
      : `${damaged} of ${chunks} chunks were damaged and are removed; they will be downloaded again.`);
  },
  freed({ left }) {
    setBusy(null);
    say(left === 0 ? "The cache is empty." : "Not everything could be removed: another tab may be using it. Close it and free the cache again.");
  },
  async usage({ bytes, store }) {
    const kept = (await navigator.storage?.persisted?.()) ? "kept until you free it" : "the browser may delete it when space is short";
    at("usage").textContent = store ? `Cache: ${size(bytes)}${bytes > 0 ? `, ${kept}` : ""}` : "No cache in this browser";
  },
  failed,
};

worker.addEventListener("message", ({ data }) => heard[data.type](data));
worker.addEventListener("error", (event) => {
  failed({ task: busy ?? "engine", message: `the engine could not be started: ${event.message ?? "its files cannot be read"}`, hint: "reload the page" });
});

const parameters = new URLSearchParams(location.search);
loadForm.elements.url.value = parameters.get("bundle") ?? new URL("./", location.href).href;
send("usage");
