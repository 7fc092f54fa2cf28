import { Failure } from "./failure.js";

const UNITS = ["B", "kB", "MB", "GB", "TB"];

/** @param {number} bytes */
export function size(bytes) {
  let [value, unit] = [Math.max(bytes, 0), 0];
  while (value >= 1000 && unit < UNITS.length - 1) {
    value /= 1000;
    unit += 1;
  }
  return `${value.toFixed(unit === 0 || value >= 100 ? 0 : 1)} ${UNITS[unit]}`;
}

/** @param {number} seconds */
export function duration(seconds) {
  const whole = Math.ceil(seconds);
  if (whole < 60) return `${whole} s`;
  if (whole < 3600) return `${Math.floor(whole / 60)} min ${whole % 60} s`;
  const minutes = Math.ceil(whole / 60);
  return `${Math.floor(minutes / 60)} h ${minutes % 60} min`;
}

/** Bytes a second over the last seconds. */
export class Speed {
  /** @type {[number, number][]} */
  #seen = [];

  /** @param {number} bytes so far @returns {number} 0 while it is not known */
  at(bytes) {
    const now = performance.now();
    this.#seen.push([now, bytes]);
    while (this.#seen.length > 2 && now - this.#seen[0][0] > 5000) this.#seen.shift();
    const [then, before] = this.#seen[0];
    return now - then < 300 ? 0 : ((bytes - before) / (now - then)) * 1000;
  }
}

/**
 * The folder of an address: https://..., hf://owner/name[@revision], or relative to the page.
 * @param {string} text
 * @param {string} page
 */
export function folder(text, page) {
  const hub = /^hf:\/\/([^/@]+\/[^/@]+?)(?:@(.+?))?\/?$/.exec(text);
  const url = hub ? `https://huggingface.co/${hub[1]}/resolve/${encodeURIComponent(hub[2] ?? "main")}/` : text;
  const folder = URL.parse(url.endsWith("/") ? url : `${url}/`, page);
  if (!folder?.host || !/^https?:$/.test(folder.protocol)) {
    throw new Failure(`\`${text}\` is no address of a bundle`, "give https://host/folder/, hf://owner/name or hf://owner/name@revision");
  }
  return folder.href;
}
