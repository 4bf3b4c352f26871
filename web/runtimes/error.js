/** A model that cannot be loaded or run, or inputs that do not fit it. */
export class RuntimeError extends Error {
  constructor(message, { cause } = {}) {
    super(message, { cause });
    this.name = 'RuntimeError';
  }
}
