// What the processes of a browser take of memory, as Linux counts it.

import { readFileSync, readdirSync } from "node:fs";

const EVERY_MS = 10;

/** The most that a renderer process of a browser takes from now on, beyond what it takes now. */
export class Watch {
  /** @param {string} profile the browser's folder */
  constructor(profile) {
    const isBrowser = (process) => command(process).includes(`--user-data-dir=${profile}`) && !command(process).includes("--type=");
    this.browser = Number(processes().find(isBrowser));
    this.most = 0;
    /** @type {Map<string, number>} */
    this.before = new Map();
    this.look();
    this.timer = setInterval(() => this.look(), EVERY_MS);
  }

  look() {
    for (const process of processes()) {
      try {
        if (!this.before.has(process)) {
          if (!command(process).includes("--type=renderer") || !descends(process, this.browser)) continue;
          this.before.set(process, taken(process));
        }
        this.most = Math.max(this.most, taken(process) - this.before.get(process));
      } catch {
        // It has just ended.
      }
    }
  }

  /** Bytes. */
  stop() {
    clearInterval(this.timer);
    return this.most;
  }
}

const processes = () => readdirSync("/proc").filter((name) => /^\d+$/.test(name));

/** Its command line; nothing of one that has ended. @param {string} process */
function command(process) {
  try {
    return readFileSync(`/proc/${process}/cmdline`, "utf8");
  } catch {
    return "";
  }
}

/** Bytes of its own, and shared with the GPU's process; not those of mapped files. @param {string} process */
const taken = (process) => 1024 * (field(process, "RssAnon") + field(process, "RssShmem"));

/** @param {string} process @param {number} ancestor */
function descends(process, ancestor) {
  for (let at = Number(process); at > 1; at = field(at, "PPid")) if (at === ancestor) return true;
  return false;
}

/** @param {number | string} process @param {string} name */
function field(process, name) {
  return Number(new RegExp(`^${name}:\\s*(\\d+)`, "m").exec(readFileSync(`/proc/${process}/status`, "utf8"))[1]);
}
