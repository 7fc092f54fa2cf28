let last = Promise.resolve("");

/**
 * SHA-256 in hexadecimal, of one thing at a time: browsers copy what they hash.
 * @param {Uint8Array} bytes
 */
export function sha256(bytes) {
  last = last.then(() => digest(bytes));
  return last;
}

/** @param {Uint8Array} bytes */
async function digest(bytes) {
  const digest = new Uint8Array(await crypto.subtle.digest("SHA-256", bytes));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}
