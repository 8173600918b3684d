// Levels of detail: a chart has a thousand pixels, and a history a million events.

/** How many points a chart gets, at most. A block is two of them: its least and its greatest value. */
const MOST_POINTS = 2048;

/** The least and the greatest of each 2, 4, 8, ... neighbouring numbers. */
class Levels {
  constructor(numbers) {
    this.numbers = numbers;
    this.levels = [];
    let [least, greatest] = [numbers, numbers];
    while (least.length > MOST_POINTS / 4) {
      const count = Math.ceil(least.length / 2);
      const [low, high] = [new Float64Array(count), new Float64Array(count)];
      for (let i = 0; i < count; i++) {
        const [a, b] = [2 * i, Math.min(2 * i + 1, least.length - 1)];
        // A comparison with NaN is false: one beside a number must not hide it.
        low[i] = least[b] < least[a] || least[a] !== least[a] ? least[b] : least[a];
        high[i] = greatest[b] > greatest[a] || greatest[a] !== greatest[a] ? greatest[b] : greatest[a];
      }
      this.levels.push({ least: low, greatest: high });
      [least, greatest] = [low, high];
    }
  }
}

/** The series of a chart over the events of a pool. */
class Sampler {
  /** `series`: for each the numbers, one for each event. */
  constructor(times, series) {
    this.times = times;
    this.series = series.map((numbers) => new Levels(numbers));
  }

  /** The points of all series between two times, with the neighbours outside, and the times in front: uPlot's data. */
  between(from, to) {
    const { times } = this;
    const begin = Math.max(0, upperBound(times, from) - 1);
    const end = Math.min(times.length, lowerBound(times, to) + 1);
    let level = 0;
    while ((end - begin) / 2 ** level > (level === 0 ? MOST_POINTS : MOST_POINTS / 2)) level++;
    if (level === 0) {
      return [times.slice(begin, end), ...this.series.map(({ numbers }) => numbers.slice(begin, end))];
    }
    const size = 2 ** level;
    const [first, last] = [Math.floor(begin / size), Math.ceil(end / size)];
    const count = last - first;
    const x = new Float64Array(2 * count);
    for (let i = 0; i < count; i++) {
      x[2 * i] = times[(first + i) * size];
      x[2 * i + 1] = times[Math.min((first + i + 1) * size, times.length) - 1];
    }
    const series = this.series.map(({ numbers, levels }) => {
      const { least, greatest } = levels[level - 1] ?? { least: numbers, greatest: numbers };
      const y = new Float64Array(2 * count);
      for (let i = 0; i < count; i++) {
        const at = Math.min(first + i, least.length - 1);
        // The line reaches both, in the order that fits the neighbours.
        const isRising = numbers[Math.min((first + i) * size, numbers.length - 1)] * 2 < least[at] + greatest[at];
        y[2 * i] = isRising ? least[at] : greatest[at];
        y[2 * i + 1] = isRising ? greatest[at] : least[at];
      }
      return y;
    });
    return [x, ...series];
  }
}
