// The page in a real browser: `node tests/browser/run.mjs`, after `web/build` and `cargo build --release`.
//
// CHROMIUM names the browser, SCREENSHOTS a folder for pictures, ONLY a part of the name of the tests to run.

import { rmSync } from "node:fs";

import { loading } from "./loading.mjs";
import { browser, folder, host, hosts } from "./setup.mjs";
import { using } from "./using.mjs";

let failed = 0;
for (const [name, test] of Object.entries({ ...using, ...loading })) {
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
