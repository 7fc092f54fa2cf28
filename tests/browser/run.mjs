// The page in a real browser: `node tests/browser/run.mjs`, after `web/build` and `cargo build --release`.
//
// CHROMIUM names the browser, SCREENSHOTS a folder for pictures, ONLY a part of the name of the tests to run.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import { Host } from "./host.mjs";
import { Tab } from "./page.mjs";

const root = resolve(fileURLToPath(import.meta.url), "../../..");
const packlight = join(root, "target/release/packlight");
const { chromium } = createRequire(join(root, "target/browser/"))("playwright-core");
const folder = mkdtempSync(join(tmpdir(), "packlight-browser-"));
const run = (...words) => execFileSync(packlight, words, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], maxBuffer: 1 << 26 });
const hash = (bytes) => createHash("sha256").update(bytes).digest("hex");
const SHARD = "params_shard_0.bin";
const PROMPTS = ["What is the capital of France?", "Hi", "Write a haiku."];
const TOKENS = 16;
/** The same GPU everywhere, which is slow: enough for one to press Stop. */
const GPU = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];

/** @param {string[]} flags */
function launch(flags) {
  const quiet = ["--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
  return chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--headless=new", ...quiet, ...flags] });
}

/** The demo bundle, made from the repository's checkpoint. */
const demo = join(folder, "demo");
run("convert", join(root, "demo"), "-o", demo);

/** A copy of the bundle with other chunks, so that a small file has several. */
function rechunked(name, chunkBytes) {
  const copy = join(folder, name);
  cpSync(demo, copy, { recursive: true });
  const manifest = JSON.parse(readFileSync(join(copy, "packlight.json"), "utf8"));
  manifest.chunk_bytes = chunkBytes;
  for (const file of manifest.files) {
    const bytes = readFileSync(join(copy, file.path));
    const count = Math.max(1, Math.ceil(bytes.length / chunkBytes));
    file.sha256 = Array.from({ length: count }, (_, i) => hash(bytes.subarray(i * chunkBytes, (i + 1) * chunkBytes)));
  }
  writeFileSync(join(copy, "packlight.json"), JSON.stringify(manifest));
  return copy;
}

const host = await Host.start(packlight, demo, join(root, "web/dist"));
const hosts = [host];
const hostOf = async (bundle) => {
  hosts.push(await Host.start(packlight, bundle, join(root, "web/dist")));
  return hosts.at(-1);
};
const browser = await launch(GPU);

/** A picture for people to look at. @param {Tab} tab @param {string} name */
async function picture(tab, name) {
  if (!process.env.SCREENSHOTS) return;
  mkdirSync(process.env.SCREENSHOTS, { recursive: true });
  await tab.page.screenshot({ path: join(process.env.SCREENSHOTS, `${name}.png`), fullPage: true });
}

const tests = {
  async "every kernel that needs nothing optional is WGSL to a browser"(context) {
    const kernels = JSON.parse(execFileSync(join(root, "target/release/examples/kernels"), { encoding: "utf8", maxBuffer: 1 << 26 }));
    const floor = kernels.filter((kernel) => kernel.needs_nothing);
    assert.ok(floor.length > 10);
    const page = await context.newPage();
    await page.goto(host.url);
    const faults = await page.evaluate(async (kernels) => {
      const device = await (await navigator.gpu.requestAdapter()).requestDevice();
      const faults = [];
      for (const { name, source } of kernels) {
        const { messages } = await device.createShaderModule({ code: source }).getCompilationInfo();
        for (const { type, lineNum, message } of messages) if (type === "error") faults.push(`${name}:${lineNum}: ${message}`);
      }
      return faults;
    }, floor);
    assert.deepEqual(faults, []);
  },

  async "answers as the native runner does, and comes from the cache the second time"(context) {
    const tab = await Tab.open(context, host.url);
    const { about, memory } = await tab.loads();
    assert.ok(memory <= 256 << 20, `${memory} bytes of wasm memory`);
    assert.ok(Object.keys(about.kernels).length > 5, JSON.stringify(about));
    for (const prompt of PROMPTS) {
      const native = JSON.parse(run("run", demo, "-p", prompt, "-n", String(TOKENS), "--json"));
      const answer = await tab.ask(prompt, TOKENS);
      assert.deepEqual(answer.tokens, native.tokens, prompt);
      assert.equal(answer.text, native.text);
      if (prompt.includes("France")) assert.match(answer.text, /Paris/);
    }
    await picture(tab, "chat");
    const stopped = tab.ask(PROMPTS[2], 200);
    await tab.page.locator("#messages .assistant > div").filter({ hasText: /\w/ }).waitFor();
    await tab.page.getByRole("button", { name: "Stop" }).click();
    const { finish, tokens } = await stopped;
    assert.ok(finish === "interrupted" && tokens.length < 20, `${finish} ${tokens.length}`);

    host.heal();
    const again = await Tab.open(context, host.url);
    const planned = again.next(["planned"], 0);
    await again.loads();
    assert.deepEqual(host.asked, [{ name: "packlight.json", range: undefined }]);
    const { bytes, cached } = await planned;
    assert.ok(bytes > 0 && bytes === cached);
    // And without any network at all.
    await context.setOffline(true);
    await again.loads();
    assert.match(await again.page.locator("#notes").innerText(), /cannot be reached/);
    await context.setOffline(false);
  },

  async "a flipped byte is refused and not kept"(context) {
    host.flip = { name: SHARD, offset: 1_000_000 };
    const tab = await Tab.open(context, host.url);
    await tab.refuses(/params_shard_0\.bin` chunk 0 .* does not have the SHA-256/);
    await picture(tab, "flipped");
    const sizes = Object.values(await tab.kept());
    assert.ok(!sizes.includes(readFileSync(join(demo, SHARD)).length), `${sizes}`);
    host.heal();
    await tab.loads();
  },

  async "a connection that is cut goes on inside the file"(context) {
    host.cut = { name: SHARD, after: 1_000_000, times: 1 };
    const tab = await Tab.open(context, host.url);
    await tab.loads();
    const starts = host.asked.filter(({ name }) => name === SHARD).map(({ range }) => Number(/=(\d+)/.exec(range ?? "=0")[1]));
    // What was received before the cut is not asked for again.
    assert.ok(starts.length === 2 && starts[0] === 0 && starts[1] > 500_000 && starts[1] <= 1_000_000, `${starts}`);
  },

  async "a download that was given up goes on from what is kept"(context) {
    const chunk = 1 << 18;
    const small = await hostOf(rechunked("chunks", chunk));
    // Five chunks come, and then nothing more.
    small.cut = { name: SHARD, after: 5 * chunk + 1000, times: Infinity };
    const tab = await Tab.open(context, small.url);
    await tab.refuses(/cannot be read/);
    small.heal();
    await tab.loads();
    const starts = small.asked.filter(({ name }) => name === SHARD).map(({ range }) => Number(/=(\d+)/.exec(range ?? "=0")[1]));
    assert.deepEqual(starts, [5 * chunk]);
  },

  async "a bundle of 1 MiB files works"(context) {
    const cut = join(folder, "cut");
    run("pack", demo, "-o", cut, "--max-file-bytes", "1MiB");
    assert.ok(existsSync(join(cut, `${SHARD}.part000`)));
    const tab = await Tab.open(context, (await hostOf(cut)).url);
    await tab.loads();
    assert.match((await tab.ask(PROMPTS[0])).text, /Paris/);
  },

  async "a plain MLC bundle works and is said not to be verified"(context) {
    const plain = join(folder, "plain");
    cpSync(demo, plain, { recursive: true });
    rmSync(join(plain, "packlight.json"));
    const tab = await Tab.open(context, (await hostOf(plain)).url);
    await tab.loads();
    assert.match(await tab.page.locator("#notes").innerText(), /not verified/);
    assert.match((await tab.ask(PROMPTS[0])).text, /Paris/);
    await picture(tab, "plain");
  },

  async "where files cannot be written the Cache API keeps them, and nothing where that is not wanted"(context) {
    const tab = await Tab.open(context, host.url);
    await tab.page.getByLabel("Keep the download").uncheck();
    await tab.loads();
    assert.deepEqual(await tab.kept(), {});
    await tab.inWorker("delete FileSystemFileHandle.prototype.createWritable;");
    await tab.loads();
    assert.deepEqual(await tab.kept(), {});
    host.heal();
    await tab.loads();
    assert.deepEqual(host.asked.map(({ name }) => name), ["packlight.json"]);
    await tab.press("Free the cache", /empty/);
    assert.deepEqual(await tab.page.evaluate(async () => (await (await caches.open("packlight")).keys()).length), 0);
  },

  async "two tabs download once"(context) {
    host.delay = 1000;
    const tabs = await Promise.all([Tab.open(context, host.url), Tab.open(context, host.url)]);
    await Promise.all(tabs.map((tab) => tab.loads()));
    assert.equal(host.asked.filter(({ name }) => name === SHARD).length, 1);
  },

  async "the cache can be verified, mended and freed"(context) {
    const tab = await Tab.open(context, host.url);
    await tab.loads();
    const bytes = readFileSync(join(demo, SHARD));
    await tab.page.evaluate(async (name) => {
      const root = await navigator.storage.getDirectory();
      const file = await (await root.getDirectoryHandle("packlight")).getFileHandle(name);
      const writable = await file.createWritable({ keepExistingData: true });
      await writable.write({ type: "write", position: 5, data: new Uint8Array([1, 2, 3, 4, 5, 6, 7]) });
      await writable.close();
    }, hash(bytes));
    assert.match(await tab.press("Verify the cache", /chunks/), /^1 of \d+ chunks/);
    host.heal();
    await tab.loads();
    assert.deepEqual(host.asked.map(({ name }) => name).sort(), ["packlight.json", SHARD]);
    assert.match(await tab.press("Verify the cache", /chunks/), /whole/);
    await tab.press("Free the cache", /empty/);
    assert.deepEqual(await tab.kept(), {});
  },

  async "what a device or browser lacks is said before anything is downloaded"(context) {
    const stubs = {
      limits: [/larger than a binding/, `const real = Object.getOwnPropertyDescriptor(GPUAdapter.prototype, "limits").get;
        const small = ["maxStorageBufferBindingSize", "maxBufferSize"];
        Object.defineProperty(GPUAdapter.prototype, "limits", { get() {
          const limits = real.call(this);
          return new Proxy({}, { get: (_, name) => (small.includes(name) ? 256 : limits[name]) });
        } });`],
      space: [/gives this site/, `navigator.storage.estimate = async () => ({ quota: 1e6, usage: 5e5 });`],
    };
    for (const [name, [message, stub]] of Object.entries(stubs)) {
      const tab = await Tab.open(context, host.url);
      await tab.inWorker(stub);
      await tab.refuses(message);
      await picture(tab, `lacks-${name}`);
      assert.ok(!host.asked.some(({ name }) => name === SHARD));
      await tab.page.close();
    }
  },

  async "without WebGPU the page says so"() {
    const bare = await launch([]);
    try {
      const tab = await Tab.open(await bare.newContext(), host.url);
      await tab.refuses(/WebGPU/);
      await picture(tab, "no-webgpu");
      assert.ok(!host.asked.some(({ name }) => name === SHARD));
    } finally {
      await bare.close();
    }
  },

  async "the service worker joins parts for other clients, and rejects wrong bytes"(context) {
    const cut = join(folder, "parts");
    run("pack", demo, "-o", cut, "--max-file-bytes", "1MiB");
    const parts = await hostOf(cut);
    const page = await context.newPage();
    await page.goto(`${parts.url}sw/`);
    const read = async () => {
      await page.reload();
      await page.getByRole("button").click();
      const line = page.getByRole("status").filter({ hasText: /bytes|Refused/ });
      await line.waitFor();
      return line.innerText();
    };
    const shard = readFileSync(join(demo, SHARD));
    const whole = `${shard.length} bytes, SHA-256 ${hash(shard)}`;
    assert.equal(await read(), whole);
    parts.flip = { name: `${SHARD}.part001`, offset: 1000 };
    assert.match(await read(), /^Refused/);
    parts.heal();
    assert.equal(await read(), whole);
    assert.ok(parts.asked.some(({ name }) => name.endsWith(".part002")) && !parts.asked.some(({ name }) => name === SHARD));
  },

  async "the page can be read on a phone, in the dark, and used by keyboard"() {
    for (const [name, options] of Object.entries({
      phone: { viewport: { width: 360, height: 740 } },
      dark: { colorScheme: "dark" },
    })) {
      const context = await browser.newContext(options);
      const tab = await Tab.open(context, host.url);
      await tab.page.getByRole("textbox", { name: "Bundle" }).focus();
      await tab.page.keyboard.press("Enter");
      await tab.next(["loaded", "failed"], 0);
      // The message has the focus: no mouse is needed.
      await tab.page.keyboard.type(PROMPTS[0]);
      await tab.page.keyboard.press("Enter");
      assert.match((await tab.next(["answered", "failed"], 0)).answer.text, /Paris/);
      await tab.page.locator("summary").click();
      const wide = await tab.page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
      assert.ok(!wide, "the page is wider than the screen");
      await picture(tab, name);
      await context.close();
    }
  },
};

let failed = 0;
for (const [name, test] of Object.entries(tests)) {
  if (!name.includes(process.env.ONLY ?? "")) continue;
  const start = performance.now();
  host.heal();
  const context = await browser.newContext();
  try {
    await test(context);
    console.log(`ok     ${name} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name}\n${error.stack}`);
  } finally {
    await context.close();
  }
}
await browser.close();
hosts.forEach((host) => host.stop());
rmSync(folder, { recursive: true });
process.exit(failed ? 1 : 0);
