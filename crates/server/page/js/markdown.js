// Text of agents, shown with the little markup that they use. It makes elements, never HTML: no images, and a link shows
// where it leads.

import { h } from './dom.js';

// What opens a part and is closed nowhere must not be looked for from each opening again: so a part has no other opening in
// it, and a row of backticks is taken as a whole.
const INLINE = /(?<!`)(`{1,9})(?!`)([\s\S]*?[^`])\1(?!`)|\*\*([^*\n]+)\*\*|(?<![\w*])\*([^*\s][^*\n]*)\*(?!\w)|\[([^[\]\n]*)\]\(((?:[^()\s]|\([^()\s]*\))+)\)|(https?:\/\/[^\s<>"')\]]+)/g;

/** @param {string} source */
function inline(source) {
  const parts = [];
  let from = 0;
  for (const match of source.matchAll(INLINE)) {
    if (match.index > from) parts.push(source.slice(from, match.index));
    const [whole, , code, strong, em, label, target, bare] = match;
    if (code !== undefined) parts.push(h('code', null, code));
    else if (strong !== undefined) parts.push(h('strong', null, strong));
    else if (em !== undefined) parts.push(h('em', null, em));
    else parts.push(link(bare ?? target, label, whole));
    from = match.index + whole.length;
  }
  if (from < source.length) parts.push(source.slice(from));
  return parts;
}

/** @param {string} target @param {string | undefined} label @param {string} whole */
function link(target, label, whole) {
  if (!/^https?:\/\//.test(target)) return whole;
  const props = { href: target, rel: 'noreferrer noopener nofollow', target: '_blank' };
  return label && label !== target
    ? h('span', null, `${label} (`, h('a', props, target), ')')
    : h('a', props, target);
}

/** @param {{ text: string }} _ */
export function Markdown({ text }) {
  const blocks = [];
  const lines = text.split('\n');
  let at = 0;
  const take = (/** @type {(line: string) => boolean} */ test) => {
    const start = at;
    while (at < lines.length && test(lines[at])) at += 1;
    return lines.slice(start, at);
  };
  while (at < lines.length) {
    const line = lines[at];
    const fence = /^\s*(```+|~~~+)\s*([\w+-]*)/.exec(line);
    const heading = /^(#{1,6})\s+(.*)/.exec(line);
    if (!line.trim()) {
      at += 1;
    } else if (fence) {
      at += 1;
      const code = take((other) => !other.trim().startsWith(fence[1]));
      at += 1;
      blocks.push(h('pre', { class: 'code', tabIndex: 0 }, h('code', null, code.join('\n'))));
    } else if (heading) {
      at += 1;
      blocks.push(h('p', { class: 'md-head' }, inline(heading[2])));
    } else if (isItem(line)) {
      const items = take((other) => isItem(other) || /^\s{2,}\S/.test(other)).reduce(joinItems, /** @type {string[]} */ ([]));
      blocks.push(h(/^\s*\d/.test(line) ? 'ol' : 'ul', { dir: 'auto' }, items.map((item) => h('li', null, inline(item)))));
    } else if (line.startsWith('>')) {
      const quote = take((other) => other.startsWith('>'));
      blocks.push(h('blockquote', { dir: 'auto' }, inline(quote.map((other) => other.replace(/^>\s?/, '')).join('\n'))));
    } else if (/^\s*\|.*\|\s*$/.test(line)) {
      blocks.push(h('pre', { class: 'code', tabIndex: 0 }, take((other) => /^\s*\|/.test(other)).join('\n')));
    } else {
      const words = take((other) => !!other.trim() && !/^(\s*(```|~~~)|#{1,6}\s|>)/.test(other) && !isItem(other));
      blocks.push(h('p', null, inline(words.join('\n'))));
    }
  }
  return h('div', { class: 'md' }, blocks);
}

/** @param {string} line */
const isItem = (line) => /^\s*([-*+]|\d+[.)])\s+\S/.test(line);

/** @param {string[]} items @param {string} line */
function joinItems(items, line) {
  if (isItem(line)) items.push(line.replace(/^\s*([-*+]|\d+[.)])\s+/, ''));
  else items[items.length - 1] += `\n${line.trim()}`;
  return items;
}
