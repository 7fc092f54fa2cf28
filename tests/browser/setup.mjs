// What the tests of the page share: a browser, hosts, and the demo's bundle.

import { execFileSync } from "node:child_process";
import { createHash } from "node:crypto";
import { cpSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from "node:fs";
import { createRequire } from "node:module";
import { tmpdir } from "node:os";
import { join, resolve } from "node:path";
import { fileURLToPath } from "node:url";

import { Host } from "./host.mjs";

export const root = resolve(fileURLToPath(import.meta.url), "../../..");
export const packlight = join(root, "target/release/packlight");
export const { chromium } = createRequire(join(root, "target/browser/"))("playwright-core");
export const folder = mkdtempSync(join(tmpdir(), "packlight-browser-"));
export const run = (...words) => execFileSync(packlight, words, { encoding: "utf8", stdio: ["ignore", "pipe", "pipe"], maxBuffer: 1 << 26 });
export const hash = (bytes) => createHash("sha256").update(bytes).digest("hex");
export const SHARD = "params_shard_0.bin";
export const PROMPTS = ["What is the capital of France?", "Hi", "Write a haiku."];
export const TOKENS = 16;
/** The same GPU everywhere, which is slow: enough for one to press Stop. */
export const GPU = ["--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"];

/** @param {string[]} flags */
export function options(flags) {
  const quiet = ["--no-sandbox", "--disable-quic", "--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync"];
  return { executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: ["--headless=new", ...quiet, ...flags] };
}

/** @param {string[]} flags */
export const launch = (flags) => chromium.launch(options(flags));

/** The demo bundle, made from the repository's checkpoint. */
export const demo = join(folder, "demo");
run("convert", join(root, "demo"), "-o", demo);

/** A copy of the bundle with other chunks, so that a small file has several. */
export function rechunked(name, chunkBytes) {
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

export const hosts = [];
export const hostOf = async (bundle) => {
  const host = await Host.start(packlight, bundle, join(root, "web/dist"));
  hosts.push(host);
  return host;
};

/** A picture for people to look at. @param {import("./page.mjs").Tab} tab @param {string} name */
export async function picture(tab, name) {
  if (!process.env.SCREENSHOTS) return;
  mkdirSync(process.env.SCREENSHOTS, { recursive: true });
  await tab.page.screenshot({ path: join(process.env.SCREENSHOTS, `${name}.png`), fullPage: true });
}

/** Reads a shard on the example page of the service worker; returns what that says of it. */
export async function readShard(page) {
  await page.reload();
  await page.getByRole("button").click();
  const line = page.getByRole("status").filter({ hasText: /bytes|Refused/ });
  await line.waitFor();
  return line.innerText();
}

export const megabytes = (/** @type {number} */ bytes) => Math.round(bytes / (1 << 20));
