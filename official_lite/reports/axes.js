// Number formatting, and axes with ticks.

function exact(value) {
  if (Number.isInteger(value)) return value.toLocaleString("en");
  return String(Number(value.toPrecision(5)));
}

// Format a tick: in the unit that suits the largest number of the axis, with enough digits to
// distinguish neighboring ticks.
function short(value, step, largest) {
  if (Math.abs(value) < step * 1e-6) return "0";
  if (largest >= 1e9 || largest < 1e-3) {
    return Number(value.toPrecision(3)).toExponential().replace("e+", "e");
  }
  const [unit, name] = largest >= 1e6 ? [1e6, "M"] : largest >= 1e4 ? [1e3, "k"] : [1, ""];
  const decimals = Math.max(0, -Math.floor(Math.log10(step / unit) + 1e-9));
  return (value / unit).toFixed(Math.min(decimals, 6)) + name;
}

// Return the exponential moving average of the values up to each one.
function smoothed(values, weight) {
  let sum = 0;
  let share = 0;
  return values.map((value) => {
    if (value === null || weight === 0) return value;
    sum = weight * sum + (1 - weight) * value;
    share = weight * share + (1 - weight);
    return sum / share;
  });
}

// A single tick shows no scale, so a small chart may have more ticks than `count`.
function linearTicks(low, high, count, leastStep) {
  const rough = Math.max((high - low) / Math.max(1, count), leastStep);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((factor) => factor * power).find((one) => one >= rough * 0.999);
  const number = Math.floor(high / step + 1e-6) - Math.ceil(low / step - 1e-6) + 1;
  if (number < 2 && step > leastStep && count < 8) {
    return linearTicks(low, high, count + 1, leastStep);
  }
  const ticks = [];
  const largest = Math.max(Math.abs(low), Math.abs(high));
  for (let n = Math.ceil(low / step - 1e-6); n * step <= high + step * 1e-6; n += 1) {
    ticks.push({ at: n * step, text: short(n * step, step, largest) });
  }
  return ticks;
}

function logTicks(low, high, count) {
  const decades = Math.log10(high / low);
  if (decades < 1) return linearTicks(low, high, count, 0).filter((tick) => tick.at > 0);
  const factors = decades * 3 <= count ? [1, 2, 5] : [1];
  const every = Math.max(1, Math.ceil(decades / Math.max(2, count)));
  const ticks = [];
  for (let n = Math.floor(Math.log10(low)); n <= Math.ceil(Math.log10(high)); n += 1) {
    if (n % every !== 0) continue;
    for (const factor of factors) {
      const at = Number((factor * 10 ** n).toPrecision(6));
      if (at >= low * 0.999 && at <= high * 1.001) ticks.push({ at, text: short(at, at, at) });
    }
  }
  if (ticks.length < 2 && count < 12) return logTicks(low, high, count + 1);
  return ticks;
}

// Build an axis from `start` to `end` (pixels) that shows `range`, or else all values.
function axis(values, { isLog, range, start, end, count, margin, leastStep = 0 }) {
  let [low, high] = range || [Infinity, -Infinity];
  for (const value of range ? [] : values) {
    low = Math.min(low, value);
    high = Math.max(high, value);
  }
  // Treat almost equal values as constant, because smoothing may change their last digit.
  const isConstant = high - low <= 1e-9 * Math.abs(high);
  if (isLog) {
    if (isConstant) [low, high] = [low / 2, high * 2];
    const stretch = (high / low) ** margin;
    [low, high] = [low / stretch, high * stretch];
  } else if (!range) {
    const pad = isConstant ? 0.1 * Math.abs(high) || 0.5 : margin * (high - low);
    [low, high] = [low - pad, high + pad];
  }
  const map = isLog ? Math.log10 : (value) => value;
  const unmap = isLog ? (value) => 10 ** value : (value) => value;
  const scale = (end - start) / (map(high) - map(low));
  return {
    place: (value) => start + (map(value) - map(low)) * scale,
    // Return the value at a pixel.
    valueAt: (pixel) => unmap(map(low) + (pixel - start) / scale),
    ticks: isLog ? logTicks(low, high, count) : linearTicks(low, high, count, leastStep),
  };
}
