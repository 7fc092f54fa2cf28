// The page in a tab, as its user sees it, and what its worker has said.

import assert from "node:assert/strict";

/** Long enough for a software GPU on a busy machine. */
const PATIENCE_MS = 120_000;

export class Tab {
  /** @param {import("playwright-core").BrowserContext} context @param {string} url */
  static async open(context, url) {
    const page = await context.newPage();
    page.setDefaultTimeout(PATIENCE_MS);
    const tab = new Tab(page);
    page.on("pageerror", (error) => tab.errors.push(String(error)));
    await page.addInitScript(() => {
      window.heard = [];
      window.Worker = class extends Worker {
        constructor(...parameters) {
          super(...parameters);
          this.addEventListener("message", ({ data }) => window.heard.push(data));
        }
      };
    });
    await page.goto(url);
    return tab;
  }

  constructor(page) {
    this.page = page;
    this.errors = [];
  }

  /** Runs something in the worker before anything else there, as another browser would have it. @param {string} script */
  async inWorker(script) {
    await this.page.route("**/page/failure.js", async (route) => {
      const body = await (await route.fetch()).text();
      await route.fulfill({ contentType: "text/javascript", body: `if (!self.document) { ${script} }\n${body}` });
    });
    await this.page.reload();
  }

  /** Makes timers of the worker run so many times as fast. @param {number} factor */
  hurry(factor) {
    return this.inWorker(`const wait = setTimeout; self.setTimeout = (then, ms) => wait(then, ms / ${factor});`);
  }

  /** Makes the GPU answer so much later: there is time to press Stop, however fast it is. @param {number} ms */
  slow(ms) {
    return this.inWorker(`
      for (const [type, name] of [[GPUBuffer, "mapAsync"], [GPUQueue, "onSubmittedWorkDone"]]) {
        const real = type.prototype[name];
        type.prototype[name] = async function (...words) {
          await new Promise((then) => setTimeout(then, ${ms}));
          return real.apply(this, words);
        };
      }`);
  }

  /** Presses Load and waits until it is over; returns what the page then says. */
  async load() {
    const before = await this.count(["loaded", "failed"]);
    await this.page.getByRole("button", { name: "Load" }).click();
    return this.next(["loaded", "failed"], before);
  }

  /** Loads, and has to succeed. */
  async loads() {
    const data = await this.load();
    assert.equal(data.type, "loaded", `${data.message} ${data.hint}`);
    return data;
  }

  /** Loads, and has to fail with a message that the page shows. @param {RegExp} message */
  async refuses(message) {
    await this.page.getByRole("button", { name: "Load" }).click();
    const alert = this.page.getByRole("alert");
    await alert.waitFor();
    const text = await alert.innerText();
    assert.match(text, message);
    assert.ok(text.split("\n").filter(Boolean).length >= 2, `no hint: ${text}`);
    return text;
  }

  /** Asks something in a new conversation; returns what came of it. @param {string} prompt */
  async sends(prompt, tokens = 16) {
    await this.page.getByRole("button", { name: "New" }).click();
    await this.page.getByLabel("Tokens").fill(String(tokens));
    const before = await this.count(["answered", "failed"]);
    await this.page.getByRole("textbox", { name: "Message" }).fill(prompt);
    await this.page.keyboard.press("Enter");
    return this.next(["answered", "failed"], before);
  }

  /** The same, and has to be answered; returns the answer as the worker gave it. @param {string} prompt */
  async ask(prompt, tokens) {
    const data = await this.sends(prompt, tokens);
    assert.equal(data.type, "answered", data.message);
    const shown = await this.page.locator("#messages .assistant > div").last().innerText();
    assert.equal(shown.trim(), data.answer.text.trim());
    return data.answer;
  }

  /** Goes on with the Tab key until something has the focus. @param {string} id */
  async reach(id, key = "Tab") {
    for (let i = 0; i < 30; i += 1) {
      await this.page.keyboard.press(key);
      if ((await this.page.evaluate(() => document.activeElement?.id)) === id) return;
    }
    assert.fail(`${key} does not reach ${id}`);
  }

  /** Presses a button and waits for what the status line says. @param {string} button @param {RegExp} status */
  async press(button, status) {
    await this.page.getByRole("button", { name: button }).click();
    const line = this.page.getByRole("status").filter({ hasText: status });
    await line.waitFor();
    return line.innerText();
  }

  /** Names and sizes of what is kept. */
  kept() {
    return this.page.evaluate(async () => {
      const root = await navigator.storage.getDirectory();
      const folder = await root.getDirectoryHandle("packlight", { create: true });
      const kept = {};
      for await (const [name, handle] of folder.entries()) {
        // What was only half written may just be going.
        const file = await handle.getFile().catch(() => null);
        if (file) kept[name] = file.size;
      }
      return kept;
    });
  }

  count(types) {
    return this.page.evaluate((types) => window.heard.filter(({ type }) => types.includes(type)).length, types);
  }

  async next(types, before) {
    const heard = ({ types, before }) => window.heard.filter(({ type }) => types.includes(type))[before];
    return (await this.page.waitForFunction(heard, { types, before })).jsonValue();
  }
}
