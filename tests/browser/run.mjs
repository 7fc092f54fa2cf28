// The page in a real browser: `node tests/browser/run.mjs`, after `web/build` and `cargo build --release`.
//
// CHROMIUM names the browser, SCREENSHOTS a folder for pictures, ONLY a part of the name of the tests to run.

import { rmSync } from "node:fs";

import { loading } from "./loading.mjs";
import { GPU, demo, folder, hostOf, hosts, launch } from "./setup.mjs";
import { using } from "./using.mjs";

let failed = 0;

const tests = Object.entries({ ...using, ...loading }).filter(([name]) => name.includes(process.env.ONLY ?? ""));
const queue = tests[Symbol.iterator]();

/** Runs tests of the queue, with a browser and a host of its own. */
async function lane() {
  const [browser, host] = await Promise.all([launch(GPU), hostOf(demo)]);
  for (const [name, test] of queue) {
    const start = performance.now();
    host.heal();
    const context = await browser.newContext();
    try {
      await test(context, { browser, host });
      console.log(`ok     ${name} (${((performance.now() - start) / 1000).toFixed(1)} s)`);
    } catch (error) {
      failed += 1;
      console.log(`FAILED ${name}\n${error.stack}`);
    } finally {
      await context.close();
    }
  }
  await browser.close();
}

// A software GPU compiles kernels on one core, for many seconds at each load: two of them use two.
await Promise.all([lane(), lane()]);
hosts.forEach((host) => host.stop());
rmSync(folder, { recursive: true });
process.exit(failed ? 1 : 0);
