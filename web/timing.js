// Repeated runs with their times, in browsers and in Node.

const LEAST_RUNS = 5;

/**
 * Calls an action and returns the times in ms, without those of the warm-up.
 *
 * @param {(number: number) => Promise<unknown>} action Does one inference.
 * @param {{warm_up: number, runs: number, seconds: number}} settings Counts, and the time after
 *   which no more runs are made once there are a few.
 * @returns {Promise<number[]>}
 */
export async function timed(action, settings) {
  for (let i = 0; i < settings.warm_up; i += 1) await action(i);
  const times = [];
  const started = performance.now();
  while (times.length < settings.runs) {
    const before = performance.now();
    if (times.length >= LEAST_RUNS && before - started > settings.seconds * 1000) break;
    await action(times.length);
    times.push(performance.now() - before);
  }
  return times;
}
