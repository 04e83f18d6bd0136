// Numbers, times and texts as people read them.

/** Rounded down, as `inspan_view::format::duration`. @param {number | null} [ms] */
export function duration(ms) {
  if (ms === undefined || ms === null || Number.isNaN(ms)) return '';
  if (ms < 1000) return `${Math.trunc(ms)} ms`;
  const s = Math.floor(ms / 1000);
  if (s < 10) return `${(Math.floor(ms / 100) / 10).toFixed(1)} s`;
  if (s < 60) return `${s} s`;
  /** @param {number} n */
  const two = (n) => String(n).padStart(2, '0');
  if (s < 3600) return `${Math.floor(s / 60)}m ${two(s % 60)}s`;
  if (s < 86_400) return `${Math.floor(s / 3600)}h ${two(Math.floor(s / 60) % 60)}m`;
  return `${Math.floor(s / 86_400)}d ${Math.floor(s / 3600) % 24}h`;
}

/** @param {number | null} [usd] */
export function money(usd) {
  if (usd === undefined || usd === null) return '';
  if (usd > 0 && usd < 0.1) return `$${usd.toFixed(4)}`;
  return `$${usd.toFixed(2)}`;
}

/** A cost of which a part may be unknown. @param {number | null} [usd] if all is known @param {number} [known] @param {number} [used] tokens */
export function spent(usd, known, used) {
  if (usd !== undefined && usd !== null) return money(usd);
  if (known) return `${money(known)} + unknown`;
  return used ? 'unknown' : '';
}

/** @param {number | null} [n] */
export function count(n) {
  if (n === undefined || n === null) return '';
  if (n < 10_000) return grouped(n);
  if (n < 1_000_000) return `${(n / 1000).toFixed(n < 100_000 ? 1 : 0)}k`;
  return `${(n / 1_000_000).toFixed(1)}M`;
}

/** Every token of a usage. @param {Api.Usage} [usage] */
export function allTokens(usage) {
  if (!usage) return 0;
  return (usage.inputTokens ?? 0) + (usage.outputTokens ?? 0) + (usage.cacheReadTokens ?? 0) + (usage.cacheCreationTokens ?? 0);
}

/** A time of day. @param {Moment} at */
export function clock(at) {
  if (!at) return '';
  return new Date(at).toLocaleTimeString('en-GB');
}

/** A time of day, with its date if that is not today's. @param {string} at @param {number} now */
export function dated(at, now) {
  const date = new Date(at);
  const isToday = date.toDateString() === new Date(now).toDateString();
  return `${isToday ? '' : `${date.toLocaleDateString('sv')} `}${clock(at)}`;
}

/** A time of day with its milliseconds. @param {Moment} at */
export function clockMs(at) {
  if (!at) return '';
  const date = new Date(at);
  return `${date.toLocaleTimeString('en-GB')}.${String(date.getMilliseconds()).padStart(3, '0')}`;
}

/** How long ago. @param {Moment} at @param {number} now */
export function ago(at, now) {
  if (!at) return '';
  const ms = now - new Date(at).getTime();
  // The time of a lost session is unknown.
  if (ms === now) return '-';
  if (ms < 5000) return 'just now';
  return ms < 60_000 ? `${Math.round(ms / 1000)} s ago` : `${duration(ms).replace(/ \d+[ms]$/, (ms < 3_600_000 ? '' : '$&'))} ago`;
}

/** How long until then. @param {Moment} at @param {number} now */
export function until(at, now) {
  if (!at) return '';
  const ms = new Date(at).getTime() - now;
  return ms <= 0 ? 'now' : `in ${duration(ms)}`;
}

/** A whole number with commas: `12,345`. Without `Intl`, which costs the first picture 20 ms. @param {number} n */
export const grouped = (n) => String(n).replace(/\B(?=(\d{3})+$)/g, ',');

/** `1 node`, `2 nodes`. @param {number} n @param {string} one @param {string} [many] */
export const plural = (n, one, many) => `${grouped(n)} ${n === 1 ? one : (many ?? `${one}s`)}`;

/** A key's value, if it is the object's own: names of fields and nodes may be `constructor`. @param {Loose} object @param {string} key */
export const own = (object, key) => (Object.hasOwn(object, key) ? object[key] : undefined);

// In JSON: a number that may be too large for JavaScript.
const LONG = /(?:^|[[:,\s])-?(?:\d{16,}|[\d.]+e\+?\d{3,})(?:$|[\],}\s])/i;

/** JSON as a value, in which a whole number that JavaScript would change is kept as it is written. @param {string} written @returns {any} */
export const readJson = (written) => JSON.parse(written, LONG.test(written) ? /** @type {any} */ (exact) : undefined);

/** @param {string} _ @param {unknown} value @param {{ source: string }} [context] absent in an old browser */
function exact(_, value, context) {
  if (typeof value !== 'number' || Number.isSafeInteger(value) || !context) return value;
  const isWhole = /^-?\d+$/.test(context.source);
  if (!isWhole && Number.isFinite(value)) return value;
  const bits = isWhole ? BigInt(context.source) : 2n ** 64n;
  if (bits < -(2n ** 63n) || bits >= 2n ** 64n) throw new RangeError('This number is too large to be kept exactly.');
  return /** @type {any} */ (JSON).rawJSON(context.source);
}

/** A value as text: text as it is, anything else as JSON. @param {unknown} value @returns {string} */
export const text = (value) => (typeof value === 'string' ? value : JSON.stringify(value, null, 2));

// Controls, marks and changes of direction, what is invisible, and tags. A joiner stays between letters or pictures that it
// is written between.
const UNSAFE = new RegExp(
  [
    '[\\0-\\x08\\v\\f\\x0e-\\x1f\\x7f-\\x9f\\xad\\u061c\\u180e\\u200b\\u200e\\u200f\\u2028-\\u202e\\u2060-\\u206f\\ufeff\\ufff9-\\ufffb\\u{e0000}-\\u{e007f}]',
    '\\r(?!\\n)',
    '\\u200c(?:(?<!\\p{sc=Arabic}.)|(?!\\p{sc=Arabic}))',
    '\\u200d(?:(?<![\\p{Extended_Pictographic}\\p{Emoji_Modifier}\\ufe0f].)|(?!\\p{Extended_Pictographic}))',
  ].join('|'),
  'gu',
);

/**
 * Text with each character written out, as `\u{202e}`, that could turn the direction of writing around or hide a part of
 * the text from its reader. `inspan_view::safe` does the same for a terminal.
 * @param {string} words
 */
export const visible = (words) => words.replace(UNSAFE, (found) => `\\u{${found.codePointAt(0)?.toString(16)}}`);

/** Text of a program, without the colours that it gave its lines. @param {string} words */
export const plain = (words) => words.replace(/\x1b\[[\d;]*m/g, '');
