// What a user of the page meets: answers, what a device lacks, and the page itself.

import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { join } from "node:path";

import { Tab } from "./page.mjs";
import { GPU, PROMPTS, SHARD, TOKENS, demo, launch, picture, root, run } from "./setup.mjs";

export const using = {
  async "every kernel that needs nothing optional is WGSL to a browser"(context, { host }) {
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

  async "answers as the native runner does, and comes from the cache the second time"(context, { host }) {
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

  async "an answer can be stopped, and so can the reading of a question"(context, { host }) {
    const tab = await Tab.open(context, host.url);
    await tab.slow(300);
    await tab.loads();
    const stop = tab.page.getByRole("button", { name: "Stop" });
    const answered = tab.sends(PROMPTS[2], 200);
    await tab.page.locator("#messages .assistant > div").filter({ hasText: /\w/ }).waitFor();
    await stop.click();
    const { answer } = await answered;
    assert.ok(answer.finish === "interrupted" && answer.tokens.length < 20, `${answer.finish} ${answer.tokens.length}`);
    const long = "word ".repeat(500).trim();
    const read = tab.sends(long);
    await stop.click();
    const { finish, tokens } = (await read).answer;
    assert.ok(finish === "interrupted" && tokens.length === 0, `${finish} ${tokens.length}`);
    // As if it had not been asked.
    assert.equal(await tab.page.getByRole("textbox", { name: "Message" }).inputValue(), long);
    assert.equal(await tab.page.locator("#messages li").count(), 0);
    await tab.ask(PROMPTS[0]);
  },

  async "what a device or browser lacks is said before anything is downloaded"(context, { host }) {
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

  async "without WebGPU the page says so"(context, { host }) {
    const bare = await launch([]);
    try {
      await context.addInitScript(() => Object.defineProperty(navigator, "gpu", { value: undefined }));
      const cases = [
        [await bare.newContext(), /has WebGPU, but no GPU/],
        [context, /this browser has no WebGPU/],
      ];
      for (const [context, message] of cases) {
        const tab = await Tab.open(context, host.url);
        await tab.refuses(message);
        await picture(tab, "no-webgpu");
        assert.ok(!host.asked.some(({ name }) => name === SHARD));
      }
    } finally {
      await bare.close();
    }
  },

  async "an address that cannot be one is refused"(context, { host }) {
    const tab = await Tab.open(context, host.url);
    for (const address of ["http://", "localhost:8000/", "ftp://host/", "hf://owner"]) {
      await tab.page.getByRole("textbox", { name: "Bundle" }).fill(address);
      await tab.refuses(/is no address of a bundle/);
    }
  },

  async "the page can be read on a phone, in the dark, and used by keyboard"(_, { host, browser }) {
    for (const [name, look] of Object.entries({
      phone: { viewport: { width: 360, height: 740 } },
      dark: { colorScheme: "dark" },
    })) {
      const context = await browser.newContext(look);
      const tab = await Tab.open(context, host.url);
      // From the top of the page, by keys alone.
      await tab.reach("url");
      await tab.page.keyboard.press("Enter");
      await tab.next(["loaded", "failed"], 0);
      // The message has the focus by itself.
      await tab.page.keyboard.type(PROMPTS[0]);
      await tab.page.keyboard.press("Enter");
      assert.match((await tab.next(["answered", "failed"], 0)).answer.text, /Paris/);
      await tab.reach("kernels", "Shift+Tab");
      await tab.page.keyboard.press("Enter");
      await tab.page.getByText("matvec q4").first().waitFor();
      const dark = await tab.page.evaluate(() => /^rgb\((\d+)/.exec(getComputedStyle(document.body).backgroundColor)[1] < 64);
      assert.equal(dark, name === "dark");
      const wide = await tab.page.evaluate(() => document.documentElement.scrollWidth > innerWidth);
      assert.ok(!wide, "the page is wider than the screen");
      await picture(tab, name);
      await context.close();
    }
  },
};
