// Bytes of a file on a host, which go on where a connection broke off.

import { Failure } from "./failure.js";
import { giveBack } from "./memory.js";

/** Failures one after the other, with less than PROGRESS bytes between them, before it is given up: half a minute. */
const ATTEMPTS = 8;
const PROGRESS = 1 << 20;
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 60_000;
/** A connection that brings nothing for so long is as good as broken. */
const STALL_MS = 20_000;

/** Bytes `at..end` of a file. */
export class Stream {
  /**
   * @param {string} url
   * @param {number} at the first byte
   * @param {number} end the byte after the last
   * @param {AbortSignal} signal ends it
   * @param {{total?: number, cache?: RequestCache, received?: (bytes: number) => void}} options the file's size, how
   *     the browser's own cache is to be used, and who is told what arrives
   */
  constructor(url, at, end, signal, { total, cache = "no-store", received = () => {} } = {}) {
    this.url = url;
    this.at = at;
    this.end = end;
    this.signal = signal;
    this.total = total;
    this.cache = cache;
    this.received = received;
    this.failures = 0;
    this.progress = 0;
    this.connection = new AbortController();
    /** @type {ReadableStreamDefaultReader<Uint8Array> | null} */
    this.reader = null;
    /** Bytes to pass over: a host without ranges sends a file from its beginning. */
    this.skip = 0;
    /** What was received and not yet read. */
    this.rest = new Uint8Array();
  }

  /**
   * The next bytes, exactly so many.
   * @param {number} length
   */
  async read(length) {
    const bytes = new Uint8Array(length);
    let filled = 0;
    while (filled < length) {
      if (this.rest.length === 0) await this.receive();
      const piece = this.rest.subarray(0, length - filled);
      bytes.set(piece, filled);
      filled += piece.length;
      const used = this.rest;
      this.rest = used.subarray(piece.length);
      if (this.rest.length === 0) {
        this.rest = new Uint8Array();
        giveBack(used);
      }
    }
    return bytes;
  }

  /** Waits for some bytes; connects anew where the connection has broken. */
  async receive() {
    for (;;) {
      try {
        const value = await inTime(this.piece());
        const skipped = Math.min(this.skip, value.length);
        this.skip -= skipped;
        this.rest = value.subarray(skipped);
        this.at += this.rest.length;
        this.progress += this.rest.length;
        this.received(this.rest.length);
        if (this.rest.length > 0) return;
      } catch (error) {
        await this.lose(error);
      }
    }
  }

  /** What comes next. */
  async piece() {
    this.reader ??= await this.connect();
    const { done, value } = await this.reader.read();
    if (done) throw new Error("the connection was closed");
    return value;
  }

  /**
   * Drops the connection and waits before the next, or gives up.
   * @param {any} error
   */
  async lose(error) {
    this.cancel();
    this.signal.throwIfAborted();
    if (error instanceof Failure) throw error;
    if (this.progress >= PROGRESS) this.failures = 0;
    this.progress = 0;
    this.failures += 1;
    if (this.failures >= ATTEMPTS || !navigator.onLine) throw unreachable(this.url, error);
    await pause(error.retryAfterMs ?? FIRST_PAUSE_MS * 2 ** (this.failures - 1), this.signal);
  }

  /** @returns {Promise<ReadableStreamDefaultReader<Uint8Array>>} */
  async connect() {
    // A file that is wanted whole is asked for whole: caches between us like that best.
    const whole = this.at === 0 && (this.total === undefined || this.end === this.total);
    /** @type {Record<string, string>} */
    const headers = whole ? {} : { Range: `bytes=${this.at}-${this.end - 1}` };
    this.connection = new AbortController();
    const signal = AbortSignal.any([this.signal, this.connection.signal]);
    const reply = await fetch(this.url, { headers, cache: this.cache, signal });
    check(this.url, reply);
    if (!reply.body) throw new Error("an empty answer");
    this.skip = reply.status === 206 ? 0 : this.at;
    return reply.body.getReader();
  }

  /** Drops the connection. */
  cancel() {
    this.connection.abort();
    this.reader = null;
  }
}

/**
 * What a promise gives, if it does so in time.
 * @template T
 * @param {Promise<T>} promise
 * @returns {Promise<T>}
 */
async function inTime(promise) {
  /** @type {number | undefined} */
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(new Error(`nothing came for ${STALL_MS / 1000} s`)), STALL_MS);
  });
  try {
    return await Promise.race([promise, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** @param {number} ms @param {AbortSignal} signal */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, ms);
    const end = () => {
      clearTimeout(timer);
      reject(signal.reason);
    };
    signal.addEventListener("abort", end, { once: true });
  });
}

/**
 * A small file; null where there is none.
 * @param {string} url
 * @param {AbortSignal} signal
 * @param {RequestCache} cache
 */
export async function small(url, signal, cache = "no-cache") {
  for (let failures = 1; ; failures += 1) {
    try {
      const reply = await inTime(fetch(url, { cache, signal }));
      if (reply.status === 404 || reply.status === 403) return null;
      check(url, reply);
      return new Uint8Array(await reply.arrayBuffer());
    } catch (error) {
      if (error instanceof Failure) throw error;
      if (failures === 3 || !navigator.onLine) throw unreachable(url, error);
      await pause(FIRST_PAUSE_MS * 2 ** failures, signal);
    }
  }
}

/**
 * Whether an answer can be what was asked for. What may be different the next time is no `Failure`.
 * @param {string} url
 * @param {Response} reply
 */
function check(url, reply) {
  const { status } = reply;
  if (status === 429 || status >= 500) {
    const seconds = Number(reply.headers.get("Retry-After"));
    const retryAfterMs = seconds > 0 ? Math.min(seconds * 1000, LONGEST_PAUSE_MS) : undefined;
    throw Object.assign(new Error(`the server answered ${status}`), { retryAfterMs });
  }
  if (status === 416) throw new Failure(`\`${name(url)}\` is shorter on the server than the bundle says`, "the bundle on the server is damaged: tell whoever publishes it");
  if (!reply.ok) throw new Failure(`\`${name(url)}\`: the server answered ${status}`, "check the address of the bundle");
  if (reply.headers.get("Content-Type")?.startsWith("text/html")) {
    throw new Failure(`\`${name(url)}\`: the server answered with a web page`, "check the address of the bundle: it is the folder that holds packlight.json");
  }
}

/** @param {string} url */
function name(url) {
  return decodeURIComponent(new URL(url).pathname.split("/").pop() ?? url);
}

/**
 * @param {string} url
 * @param {any} error
 */
function unreachable(url, error) {
  const { host } = new URL(url);
  const failure = navigator.onLine
    ? new Failure(`${host} cannot be read: ${error.message}`, "it may be down, or not allow other sites to read it (CORS): `packlight probe URL` tells")
    : new Failure("this device is offline", "what was downloaded is kept: load again once there is a network, and it goes on from there");
  return Object.assign(failure, { unreachable: true });
}
