// The worker of packager.js: a classic one, because LiteRT.js and TF.js call importScripts.
//
// In: {id, call, args}; out: {id, result} or {id, error}, and {progress}, {lost} in between.

(() => {
  const module = import('./engine.js');
  module.catch(() => {}); // `open` tells
  let engine;

  const calls = {
    // Before it is known which model it is for, and before the rest of the engine has arrived.
    async prepare(runtime) {
      const { loadLibrary } = await import('./vendored.js');
      await loadLibrary(runtime);
    },

    async open(options) {
      const { open } = await module;
      const opened = await open(options, (progress) => self.postMessage({ progress }));
      engine = opened.engine;
      const loaded = performance.getEntriesByType('resource').map(({ name }) => name);
      return { described: engine.describe(), check: opened.check, loaded };
    },
  };

  const asData = ({ name, message, hint = '', path = '' }) => ({ name, message, hint, path });

  self.onmessage = async ({ data: { id, call, args } }) => {
    try {
      const result = await (call in calls ? calls[call](...args) : engine[call](...args));
      self.postMessage({ id, result });
    } catch (error) {
      self.postMessage({ id, error: asData(error) });
    }
  };
})();
