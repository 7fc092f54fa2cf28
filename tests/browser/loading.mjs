// How bundles come: downloads, the cache, memory, and the service worker for other clients.

import assert from "node:assert/strict";
import { cpSync, existsSync, readFileSync, readdirSync, rmSync } from "node:fs";
import { join } from "node:path";

import { large, tokenizerBytes, withBytes } from "./checkpoints.mjs";
import { Watch } from "./memory.mjs";
import { Tab } from "./page.mjs";
import { GPU, PROMPTS, SHARD, chromium, demo, folder, hash, hostOf, hosts, megabytes, options, picture, readShard, rechunked, root, run } from "./setup.mjs";

export const loading = {
  async "a flipped byte is refused and not kept"(context, { host }) {
    host.flip = { name: SHARD, offset: 1_000_000 };
    const tab = await Tab.open(context, host.url);
    await tab.refuses(/params_shard_0\.bin` chunk 0 .* does not have the SHA-256/);
    await picture(tab, "flipped");
    const sizes = Object.values(await tab.kept());
    assert.ok(!sizes.includes(readFileSync(join(demo, SHARD)).length), `${sizes}`);
    host.heal();
    await tab.loads();
  },

  async "a connection that is cut goes on inside the file"(context, { host }) {
    host.cut = { name: SHARD, after: 1_000_000, times: 1 };
    const tab = await Tab.open(context, host.url);
    await tab.loads();
    const starts = host.asked.filter(({ name }) => name === SHARD).map(({ range }) => Number(/=(\d+)/.exec(range ?? "=0")[1]));
    // What was received before the cut is not asked for again.
    assert.ok(starts.length === 2 && starts[0] === 0 && starts[1] > 500_000 && starts[1] <= 1_000_000, `${starts}`);
  },

  async "a host without ranges will do"(context, { host }) {
    host.rangeless = true;
    host.cut = { name: SHARD, after: 1_000_000, times: 1 };
    const tab = await Tab.open(context, host.url);
    await tab.loads();
    assert.equal(host.asked.filter(({ name }) => name === SHARD).length, 2);
  },

  async "a host that has gone silent is asked again"(context, { host }) {
    host.stalls = true;
    host.cut = { name: SHARD, after: 1_000_000, times: 1 };
    const tab = await Tab.open(context, host.url);
    await tab.hurry(20);
    await tab.loads();
    assert.equal(host.asked.filter(({ name }) => name === SHARD).length, 2);
  },

  async "a download that was cancelled goes on from what is kept"(context) {
    const chunk = 1 << 18;
    const small = await hostOf(rechunked("chunks", chunk));
    // Five chunks come, and then nothing more.
    small.stalls = true;
    small.cut = { name: SHARD, after: 5 * chunk + 1000, times: Infinity };
    const tab = await Tab.open(context, small.url);
    const refused = tab.refuses(/was cancelled/);
    const fifth = JSON.parse(readFileSync(join(folder, "chunks/packlight.json"))).files.find(({ path }) => path === SHARD).sha256[4];
    while (!(fifth in (await tab.kept()))) await new Promise((resolve) => setTimeout(resolve, 100));
    // Another tab waits for the same file, and goes on with it.
    const other = await Tab.open(context, small.url);
    const waits = other.loads();
    while (!(await other.page.getByText(/were here already/).count())) await new Promise((resolve) => setTimeout(resolve, 100));
    small.heal();
    await tab.page.getByRole("button", { name: "Cancel" }).click();
    await refused;
    await waits;
    const starts = small.asked.filter(({ name }) => name === SHARD).map(({ range }) => Number(/=(\d+)/.exec(range ?? "=0")[1]));
    assert.deepEqual(starts, [5 * chunk]);
    // Nothing is kept this time, and the file comes in many chunks.
    await tab.page.getByLabel("Keep the download").uncheck();
    await tab.press("Free the cache", /empty/);
    await tab.loads();
    assert.deepEqual(await tab.kept(), {});
  },

  async "a bundle of 1 MiB files works"(context) {
    const cut = join(folder, "cut");
    run("pack", demo, "-o", cut, "--max-file-bytes", "1MiB");
    assert.ok(existsSync(join(cut, `${SHARD}.part000`)));
    const tab = await Tab.open(context, (await hostOf(cut)).url);
    await tab.loads();
    assert.match((await tab.ask(PROMPTS[0])).text, /Paris/);
  },

  async "a plain MLC bundle works and is said not to be verified"(context, { host }) {
    const plain = join(folder, "plain");
    cpSync(demo, plain, { recursive: true });
    rmSync(join(plain, "packlight.json"));
    const elsewhere = await hostOf(plain);
    const tab = await Tab.open(context, elsewhere.url);
    await tab.loads();
    assert.match(await tab.page.locator("#notes").innerText(), /not verified/);
    assert.match((await tab.ask(PROMPTS[0])).text, /Paris/);
    await picture(tab, "plain");
    // On another host, one whose 404 other sites may not read.
    elsewhere.hides404 = true;
    const far = await Tab.open(context, host.url);
    await far.page.getByRole("textbox", { name: "Bundle" }).fill(elsewhere.url);
    await far.loads();
    assert.match(await far.page.locator("#notes").innerText(), /not verified/);
    // A service worker has nothing to do with it.
    await far.page.goto(`${host.url}sw/?bundle=${elsewhere.url}`);
    assert.match(await readShard(far.page), /^\d+ bytes/);
  },

  async "rows of tables are looked up without a cache, too"(context) {
    const [checkpoint, bundle] = [join(folder, "tables"), join(folder, "tables-bundle")];
    withBytes(join(root, "tests/fixtures/gemma4"), checkpoint);
    run("convert", checkpoint, "-o", bundle);
    const served = await hostOf(bundle);
    const tab = await Tab.open(context, served.url);
    await tab.page.getByLabel("Keep the download").uncheck();
    await tab.loads();
    assert.match(await tab.page.locator("#notes").innerText(), /rows of its tables/);
    served.asked = [];
    const native = JSON.parse(run("run", bundle, "-p", "Hi", "-n", "4", "--json"));
    assert.deepEqual((await tab.ask("Hi", 4)).tokens, native.tokens);
    assert.ok(served.asked.length <= 1, `${served.asked.length} requests`);
    // A lost network ends an answer, not the conversation.
    await tab.loads();
    served.cut = { name: SHARD, after: 0, times: Infinity };
    served.asked = [];
    await tab.hurry(50);
    await tab.page.getByLabel("Keep the download").uncheck();
    served.heal();
    await tab.loads();
    served.cut = { name: SHARD, after: 0, times: Infinity };
    const lost = await tab.sends("Hi", 4);
    assert.match(`${lost.type} ${lost.message}`, /^failed 127\.0\.0\.1:\d+ cannot be read/);
    served.heal();
    assert.deepEqual((await tab.ask("Hi", 4)).tokens, native.tokens);
  },

  async "a large bundle and a large tokenizer take little memory"() {
    const [checkpoint, bundle] = [join(folder, "large"), join(folder, "large-bundle")];
    large(checkpoint);
    assert.ok(tokenizerBytes(checkpoint) > 30e6);
    run("convert", checkpoint, "-o", bundle, "--scheme", "q0f16");
    const served = await hostOf(bundle);
    // A browser with a profile: private windows keep files in memory.
    const profile = join(folder, "profile");
    const context = await chromium.launchPersistentContext(profile, options(GPU));
    try {
      const tab = await Tab.open(context, served.url);
      const watch = new Watch(profile);
      const { memory } = await tab.loads();
      const most = watch.stop();
      console.log(`       ${megabytes(most)} MiB, ${megabytes(memory)} of them WebAssembly`);
      // Of the process, 65 MiB may be what Chromium's network has not yet collected.
      assert.ok(memory <= 128 << 20 && most > memory && most <= 300 << 20, `${most} bytes`);
    } finally {
      await context.close();
    }
  },

  async "where files cannot be written the Cache API keeps them, and nothing where that is not wanted"(context, { host }) {
    const tab = await Tab.open(context, host.url);
    await tab.page.getByLabel("Keep the download").uncheck();
    await tab.loads();
    assert.deepEqual(await tab.kept(), {});
    await tab.inWorker("delete FileSystemFileHandle.prototype.createSyncAccessHandle;");
    await tab.loads();
    assert.deepEqual(await tab.kept(), {});
    host.heal();
    await tab.loads();
    assert.deepEqual(host.asked.map(({ name }) => name), ["packlight.json"]);
    await tab.press("Free the cache", /empty/);
    assert.deepEqual(await tab.page.evaluate(async () => (await (await caches.open("packlight")).keys()).length), 0);
  },

  async "two tabs download once"(context, { host }) {
    host.delay = 1000;
    const tabs = await Promise.all([Tab.open(context, host.url), Tab.open(context, host.url)]);
    await Promise.all(tabs.map((tab) => tab.loads()));
    assert.equal(host.asked.filter(({ name }) => name === SHARD).length, 1);
  },

  async "what arrives while it is looked for is not asked for again"(context, { host }) {
    const { page } = await Tab.open(context, host.url);
    const asked = await page.evaluate(async () => {
      const { Files } = await import(new URL("page/files.js", location.href).href);
      const { sha256 } = await import(new URL("page/digest.js", location.href).href);
      const bytes = new Uint8Array([1, 2, 3]);
      const entry = { path: "a.bin", bytes: 3, sha256: [await sha256(bytes)] };
      let arrived = () => {};
      const arrival = new Promise((resolve) => (arrived = resolve));
      let looks = 0;
      const store = {
        sizes: async () => new Map(),
        // Another tab has written it by the time that this one may, but not yet when this one first looks.
        read: async (_, start, end) => {
          if (end === 0) return new Uint8Array(0);
          looks += 1;
          if (looks > 1) return bytes;
          await arrival;
          return null;
        },
      };
      let received = 0;
      const files = new Files(location.href, store, { planned: () => {}, received: (n) => (received += n) });
      Object.assign(files, { json: bytes, chunkBytes: 8 });
      files.entries.set(entry.path, entry);
      files.arrived.addEventListener("chunk", () => setTimeout(arrived));
      files.announce([entry.path]);
      await files.range(entry.path, 0, 3);
      return { looks, received };
    });
    assert.deepEqual(asked, { looks: 2, received: 0 });
  },

  async "tabs read and write one entry at the same time"(context, { host }) {
    const { page } = await Tab.open(context, host.url);
    const said = await page.evaluate(async () => {
      const script = `
        const { openStore } = await import("${new URL("page/store.js", location.href)}");
        const store = await openStore();
        const bytes = new Uint8Array(1 << 20).fill(7);
        const use = {
          write: () => store.write("entry", bytes),
          rewrite: () => store.remove("entry").then(() => store.write("entry", bytes)),
          read: async () => ((await store.read("entry")) ?? bytes).every((byte) => byte === 7) || Promise.reject("other bytes"),
        };
        self.onmessage = async ({ data }) => {
          try {
            for (const end = performance.now() + 1000; performance.now() < end; ) await use[data]();
            postMessage("done");
          } catch (error) {
            postMessage(String(error));
          }
        };
        postMessage("ready");`;
      const url = URL.createObjectURL(new Blob([script], { type: "text/javascript" }));
      const said = (worker) => new Promise((resolve) => worker.addEventListener("message", ({ data }) => resolve(data), { once: true }));
      const workers = ["write", "rewrite", "read"].map((use) => ({ use, worker: new Worker(url, { type: "module" }) }));
      await Promise.all(workers.map(({ worker }) => said(worker)));
      return Promise.all(workers.map(({ use, worker }) => (worker.postMessage(use), said(worker))));
    });
    assert.deepEqual(said, ["done", "done", "done"]);
  },

  async "the cache can be verified, mended and freed"(context, { host }) {
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

  async "the service worker joins parts for other clients, and rejects wrong bytes"(context) {
    const cut = join(folder, "parts");
    run("pack", demo, "-o", cut, "--max-file-bytes", "100KiB");
    assert.ok(existsSync(join(cut, "tokenizer.json.part000")));
    const parts = await hostOf(cut);
    const page = await context.newPage();
    await page.goto(`${parts.url}sw/`);
    const shard = readFileSync(join(demo, SHARD));
    const whole = `${shard.length} bytes, SHA-256 ${hash(shard)}`;
    assert.equal(await readShard(page), whole);
    // As WebLLM asks for files: by the Cache API.
    const others = await page.evaluate(async () => {
      const cache = await caches.open("client");
      const found = [];
      for (const name of ["params_shard_0.bin", "tokenizer.json", "tensor-cache.json"]) {
        const url = new URL(`../${name}`, location.href);
        await cache.add(url);
        const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", await (await cache.match(url)).arrayBuffer()));
        found.push(Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join(""));
      }
      return found;
    });
    const joined = (name) => hash(Buffer.concat(readdirSync(cut).filter((file) => file.startsWith(name)).sort().map((file) => readFileSync(join(cut, file)))));
    assert.deepEqual(others, [SHARD, "tokenizer.json", "tensor-cache.json"].map(joined));
    parts.flip = { name: `${SHARD}.part001`, offset: 1000 };
    assert.match(await readShard(page), /^Refused/);
    parts.heal();
    assert.equal(await readShard(page), whole);
    assert.ok(parts.asked.some(({ name }) => name.endsWith(".part002")) && !parts.asked.some(({ name }) => name === SHARD));
  },
};
