// From a model's numbers to labels, as edge/run.py and the server answer.

/** Outputs that hold NaN or infinity. */
export class AnswerError extends Error {
  constructor(message) {
    super(message);
    this.name = 'AnswerError';
  }
}

function softmax(values) {
  const largest = Math.max(...values);
  const powers = values.map((value) => Math.exp(value - largest));
  const sum = powers.reduce((total, power) => total + power, 0);
  return powers.map((power) => power / sum);
}

// sigmoid(x) = (1 + tanh(x / 2)) / 2, and tanh cannot overflow.
const sigmoid = (value) => (1 + Math.tanh(value / 2)) / 2;

function scoresOf(values, { task, outputs: [{ activation }] }) {
  if (activation !== 'logits') return values;
  return task === 'classification' ? softmax(values) : values.map(sigmoid);
}

function binary(score, labels, threshold) {
  const positive = labels.length === 1 ? labels[0] : (labels[1] ?? '1');
  const negative = labels.length === 1 ? `not ${labels[0]}` : (labels[0] ?? '0');
  const both = [
    { class: 1, label: positive, score }, { class: 0, label: negative, score: 1 - score },
  ];
  return score >= threshold ? both : both.reverse();
}

/** Whether a task's answers are labels with scores. */
export const hasLabels = ({ task }) => ['classification', 'binary', 'multilabel'].includes(task);

/**
 * What the outputs of one sample mean; labels belong to the first output.
 *
 * @param {Object<string, {data: ArrayLike<number>}>} outputs By output name.
 * @param {object} card The manifest or the card.
 * @param {number} top At most so many labels.
 * @returns {{label: string, score: number, class: number, present?: boolean}[]} The best first.
 *   `binary`: both sides, the decided one first. `multilabel`: `present` says whether the score
 *   reaches the threshold. Empty for other tasks.
 */
export function answer(outputs, card, top = 5) {
  for (const [name, { data }] of Object.entries(outputs)) {
    if (!Array.from(data).every(Number.isFinite)) {
      throw new AnswerError(`output ${name} holds NaN or infinity`);
    }
  }
  if (!hasLabels(card)) return [];
  const { task, labels = [] } = card;
  const threshold = card.threshold ?? 0.5;
  const scores = scoresOf(Array.from(outputs[card.outputs[0].name].data), card);
  if (task === 'binary') return binary(scores[0], labels, threshold);
  const ranked = scores.map((score, i) => ({ class: i, label: labels[i] ?? String(i), score }))
    .sort((a, b) => b.score - a.score || a.class - b.class)
    .slice(0, top);
  if (task === 'classification') return ranked;
  return ranked.map((one) => ({ ...one, present: one.score >= threshold }));
}
