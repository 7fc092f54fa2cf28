// Owns the engine: everything that takes long happens here, so that the page stays awake.
//
// The page sends {type: "load" | "cancel" | "answer" | "stop" | "verify" | "free" | "usage", ...}; what it gets back is below.

import { sha256 } from "./digest.js";
import { Failure, told } from "./failure.js";
import { Files } from "./files.js";
import init, { Chat, Manifest } from "./packlight.js";
import { openStore } from "./store.js";

/** Often enough to look alive. */
const PROGRESS_MS = 200;
const IS_HASH = /^[0-9a-f]{64}$/;

const send = (/** @type {string} */ type, /** @type {object} */ data = {}) => postMessage({ type, ...data });

/** Once it could be fetched. @type {Promise<WebAssembly.Exports> | null} */
let engine = null;
/** What is loaded, or being loaded, comes from these. @type {Files | null} */
let files = null;
/** @type {Chat | null} */
let chat = null;
let stopping = false;

/** The engine's memory. */
async function started() {
  engine ??= init({ module_or_path: new URL("packlight_bg.wasm", import.meta.url) });
  try {
    return (await engine).memory;
  } catch (error) {
    engine = null;
    throw new Failure(`the engine cannot be fetched: ${error.message}`, "load again once there is a network");
  }
}

/** A bundle onto the GPU: {planned}, {described}, {progress}*, {noted}*, {loaded} or {failed}. */
async function load({ url, keep, context }) {
  files?.close();
  chat?.free();
  chat = null;
  const progress = { received: 0, uploaded: 0 };
  const store = keep ? await openStore() : null;
  const coming = new Files(url, store, {
    planned: (plan) => send("planned", plan),
    received: (bytes) => (progress.received += bytes),
    absent: (path) => send("noted", { text: `${path} cannot be read and is taken as not there.` }),
  });
  files = coming;
  const timer = setInterval(() => send("progress", progress), PROGRESS_MS);
  try {
    const memory = await started();
    const loaded = await chatOf(coming, context, (bytes) => (progress.uploaded += bytes));
    // It was cancelled when there was nothing left to read.
    if (coming.failure) {
      loaded.free();
      throw coming.failure;
    }
    chat = loaded;
    send("progress", progress);
    const about = { ...JSON.parse(chat.about), device: await device() };
    send("loaded", { about, memory: memory.buffer.byteLength, store: store?.kind ?? null });
  } catch (error) {
    // What the engine says of an error of the files knows less than they do.
    const failure = coming.failure ?? error;
    coming.close();
    throw failure;
  } finally {
    clearInterval(timer);
  }
}

/** @param {Files} files @param {number} context @param {(bytes: number) => void} uploaded */
async function chatOf(files, context, uploaded) {
  const described = await files.open((json) => {
    const manifest = new Manifest(json);
    return { ...JSON.parse(new TextDecoder().decode(json)), manifest };
  });
  if (files.offline) send("noted", { text: "The server cannot be reached; the bundle is as it was downloaded." });
  if (described) {
    const { scheme, requires, manifest } = described;
    send("described", { scheme, requires });
    await manifest.check(context);
    manifest.free();
    if (!files.store && requires?.host_bytes > 0) {
      send("noted", { text: "Each token of this model needs rows of its tables. Nothing is kept here, so they come from the server as it answers, which is slow." });
    }
  } else {
    send("noted", {
      text: "A plain MLC bundle without packlight.json: its files have no SHA-256 and are not verified. MD5 sums show accidents only. Nothing is cached here.",
    });
  }
  return Chat.load(files, described !== null, context, Math.floor(Date.now() / 1000), uploaded);
}

/** The GPU in the browser's words, of which the engine sees none. */
async function device() {
  const { info } = (await /** @type {any} */ (navigator).gpu.requestAdapter()) ?? {};
  const words = [info?.vendor, info?.architecture, info?.device, info?.description].filter(Boolean);
  return words.join(" ") || "a GPU that the browser does not name";
}

/** The next answer of a conversation: {piece}*, then {answered} or {failed}. */
async function answer({ messages, tokens, sampling }) {
  if (!chat) throw new Failure("no bundle is loaded");
  stopping = false;
  const hear = (/** @type {string} */ text) => {
    if (text) send("piece", { text });
    return stopping;
  };
  // Whatever failed at another time may work now.
  if (files) files.failure = null;
  try {
    const json = await chat.answer(JSON.stringify(messages), tokens, JSON.stringify(sampling), hear);
    send("answered", { answer: JSON.parse(json) });
  } catch (error) {
    throw files?.failure ?? error;
  }
}

/** Hashes all that is kept, and removes what is damaged: {verifying}*, then {verified}. */
async function verify() {
  const store = await openStore();
  const sizes = (await store?.sizes()) ?? new Map();
  const total = [...sizes.values()].reduce((sum, bytes) => sum + bytes, 0);
  let [done, chunks, damaged] = [0, 0, 0];
  for (const [name, bytes] of sizes) {
    if (IS_HASH.test(name)) {
      const found = await store.read(name);
      chunks += 1;
      if (found && (await sha256(found)) !== name) {
        await store.remove(name);
        damaged += 1;
      }
    } else if (name.includes(".")) {
      // Of a tab that was closed while it wrote; what is being written cannot be removed.
      await store.remove(name);
    }
    done += bytes;
    send("verifying", { done, total });
  }
  send("verified", { chunks, damaged, bytes: total });
  await usage();
}

/** Removes all that is kept: {freed}. */
async function free() {
  const store = await openStore();
  for (const name of (await store?.sizes())?.keys() ?? []) await store.remove(name);
  const left = (await store?.sizes()) ?? new Map();
  send("freed", { left: left.size });
  await usage();
}

/** What is kept: {usage}. */
async function usage() {
  const store = await openStore();
  const sizes = (await store?.sizes()) ?? new Map();
  send("usage", { bytes: [...sizes.values()].reduce((sum, bytes) => sum + bytes, 0), store: store?.kind ?? null });
}

const tasks = { load, answer, verify, free, usage };

addEventListener("message", async ({ data }) => {
  if (data.type === "stop") {
    stopping = true;
    return;
  }
  if (data.type === "cancel") {
    if (!chat) files?.close(new Failure("loading was cancelled", "what was downloaded is kept: load again, and it goes on from there"));
    return;
  }
  try {
    await tasks[/** @type {keyof typeof tasks} */ (data.type)](data);
  } catch (error) {
    send("failed", { task: data.type, ...told(error) });
  }
});

// A panic of the engine ends in no promise.
addEventListener("error", (event) => send("failed", { task: "engine", message: event.message, hint: "reload the page" }));
