/** An error that its reader can do something about. */
export class Failure extends Error {
  /**
   * @param {string} message what went wrong
   * @param {string} [hint] what its reader can do
   */
  constructor(message, hint) {
    super(message);
    this.name = "Failure";
    this.hint = hint;
  }
}

/**
 * What a page is told of an error.
 * @param {any} error
 * @returns {{message: string, hint?: string}}
 */
export function told(error) {
  return { message: String(error?.message ?? error), hint: error?.hint };
}
