// A worker with one runtime, and calls into it as promises.

const OPEN_LIMIT_MS = 120_000;

/** An error inside the worker, or the end of it. `hint` says what to do; `lost` that it ended. */
export class WorkerError extends Error {
  constructor(message, { name = 'WorkerError', hint = '', path = '', lost = false } = {}) {
    super(message);
    this.name = name;
    this.hint = hint;
    this.path = path;
    this.lost = lost;
  }
}

export class Session {
  #worker;
  #pending = new Map();
  #next = 0;
  #isRetired = false;
  #onProgress = () => {};
  #onLost = () => {};

  /** Starts the worker; `runtime`, an entry of `RUNTIMES`, is what it should load meanwhile. */
  constructor({ runtime, threads } = {}) {
    this.runtime = runtime?.id;
    this.#worker = new Worker(new URL('worker.js', import.meta.url));
    this.#worker.onmessage = ({ data }) => this.#receive(data);
    this.#worker.onerror = (event) => {
      event.preventDefault();
      this.#end(`the runtime stopped: ${event.message || 'it may have run out of memory'}`);
    };
    // What goes wrong here goes wrong again, with somebody to hear of it, in `open`.
    if (runtime !== undefined) this.call('prepare', [{ ...runtime, threads }]).catch(() => {});
  }

  #receive({ id, result, error, progress, lost }) {
    if (progress !== undefined) return this.#onProgress(progress);
    if (lost !== undefined) return this.#end(lost);
    const { resolve, reject } = this.#pending.get(id) ?? {};
    this.#pending.delete(id);
    if (error === undefined) resolve?.(result);
    else reject?.(new WorkerError(error.message, error));
    if (this.#isRetired) this.retire();
    return undefined;
  }

  #end(reason) {
    const error = new WorkerError(reason, { lost: true, hint: 'another runtime is used' });
    this.close(error);
    this.#onLost(error);
  }

  /** Calls a method of the engine; `transfer` lists what moves into the worker. */
  call(name, args = [], transfer = []) {
    if (this.#worker === undefined) {
      return Promise.reject(new WorkerError('the model is closed', { lost: true }));
    }
    const id = this.#next;
    this.#next += 1;
    return new Promise((resolve, reject) => {
      this.#pending.set(id, { resolve, reject });
      this.#worker.postMessage({ id, call: name, args }, transfer);
    });
  }

  /** Loads an artifact; rejects when that does not end in time. See engine.js. */
  async open(options, { onProgress = () => {}, onLost = () => {}, limitMs = OPEN_LIMIT_MS } = {}) {
    this.#onProgress = onProgress;
    this.#onLost = onLost;
    const late = setTimeout(
      () => this.close(new WorkerError(`loading took longer than ${limitMs / 1000} s`)), limitMs,
    );
    try {
      Object.assign(this, await this.call('open', [options]));
      return this;
    } catch (error) {
      this.close(error);
      throw error;
    } finally {
      clearTimeout(late);
    }
  }

  /** Ends the worker once it has answered what it was asked. */
  retire() {
    this.#isRetired = true;
    if (this.#pending.size === 0) this.close();
  }

  /** Ends the worker and whatever it does. */
  close(error = new WorkerError('the model is closed', { lost: true })) {
    this.#worker?.terminate();
    this.#worker = undefined;
    for (const { reject } of this.#pending.values()) reject(error);
    this.#pending.clear();
  }
}
