// What happened in one node: prompt, text as it comes, tool calls with arguments, results and diffs, output, usage.

import { cls, html, useEffect, useLayoutEffect, useRef, useState } from './dom.js';
import { clockMs, count, duration, money, plain, text } from './format.js';
import { Markdown } from './markdown.js';
import { Diff, Empty, Failure, Folded, Loading, isAtEnd } from './parts.js';
import { href, route, setQuery } from './route.js';
import { base, useReturn } from './session.js';
import { file, get } from './source.js';

/** Items read at once. */
const PAGE = 200;
/** Items that are kept while more come: fewer while the newest are read than while older ones are. */
const KEPT = 500;
const KEPT_AWAY = 2000;

/**
 * The items of a node, kept fresh: what is new or changed is read again, the rest stays.
 * @param {import('./session.js').Session} session @param {string} path @param {{ current: boolean }} atEnd
 */
function useStream(session, path, atEnd) {
  const at = session.at.value ?? undefined;
  const [pass, attempt] = (route.value.query.attempt ?? '').split('.').map((part) => Number(part) || undefined);
  const tick = at ? 0 : session.revision.value;
  const [state, setState] = useState(/** @type {{ items: any[], total: number, attempts: Api.StreamAttempt[], seq: number, error: any, isLoading: boolean }} */ ({ items: [], total: 0, attempts: [], seq: 0, error: null, isLoading: true }));
  const ref = useRef({ busy: false, again: false, key: '', seq: 0, timer: 0, tick: 0 });
  const address = `${base(session.id)}/stream`;
  const key = `${address}\n${path}\n${at ?? ''}\n${pass}.${attempt}`;
  /** @param {Loose} query @param {(old: Loose[], fresh: Loose[]) => Loose[]} join */
  const read = async (query, join) => {
    const mine = ref.current;
    if (mine.busy) {
      mine.again = true;
      return;
    }
    mine.busy = true;
    const started = mine.key;
    try {
      const ask = (/** @type {Loose} */ more) => get(address, { node: path, at, pass, attempt, limit: PAGE, ...more });
      let page = await ask(query);
      // More is new than one answer has: between what is shown and the newest would be a hole.
      const isTooMuch = query.since !== undefined && page.items.length === PAGE;
      if (isTooMuch) page = await ask({});
      if (started === mine.key) {
        // What is earlier says nothing of what is new.
        if (query.from === undefined) mine.seq = page.seq ?? 0;
        setState((old) => ({ items: isTooMuch ? page.items : join(old.items, page.items), total: page.total, attempts: page.attempts ?? [], seq: mine.seq, error: null, isLoading: false }));
      }
    } catch (error) {
      if (started === mine.key) setState((old) => ({ ...old, error, isLoading: false }));
    }
    mine.busy = false;
    if (started !== mine.key) first();
    else if (mine.again) {
      mine.again = false;
      later();
    }
  };
  const first = () => read({}, (_, fresh) => fresh);
  const later = () => {
    ref.current.timer ||= setTimeout(() => {
      ref.current.timer = 0;
      read(file ? {} : { since: ref.current.seq }, (old, fresh) => merge(old, fresh).slice(atEnd.current ? -KEPT : -KEPT_AWAY));
    }, 250);
  };
  useEffect(() => {
    ref.current.key = key;
    ref.current.seq = 0;
    ref.current.tick = tick;
    if (!at) setState({ items: [], total: 0, attempts: [], seq: 0, error: null, isLoading: true });
    first();
  }, [key]);
  // Also while the first answer is on its way, or if nothing had happened when it was made.
  useEffect(() => {
    if (!at && ref.current.tick !== tick) later();
    ref.current.tick = tick;
  }, [tick]);
  useReturn(() => state.error && first());
  const earlier = () => {
    const from = Math.max(0, (state.items[0]?.index ?? 0) - PAGE);
    return read({ from, limit: (state.items[0]?.index ?? 0) - from }, merge);
  };
  return { ...state, earlier, retry: first };
}

/** Items by their index; a newer one replaces. @param {Loose[]} old @param {Loose[]} fresh */
function merge(old, fresh) {
  if (!fresh.length) return old;
  const all = new Map(old.map((item) => [item.index, item]));
  for (const item of fresh) all.set(item.index, item);
  return [...all.values()].sort((a, b) => a.index - b.index);
}

/** Says that only the beginning of a value is shown. @param {{ item: Loose }} _ */
const Cut = ({ item }) => item.cut ? html`<p class="faint">${count(item.cut)} bytes in all; the log has them.</p>` : null;

/** A tool call. @param {{ item: Loose }} _ */
function Tool({ item }) {
  const edits = item.edits ?? [];
  const isOpen = item.ok === undefined;
  const input = item.input && typeof item.input === 'object' && Object.keys(item.input).length === 0 ? '' : text(item.input ?? '');
  const brief = item.input && typeof item.input === 'object' ? Object.values(item.input).find((value) => typeof value === 'string') : item.input;
  return html`<details class=${cls('tool', item.ok === false && 'bad')} open=${edits.length > 0 || item.ok === false || isOpen}>
    <summary><span class=${cls('glyph', isOpen ? 'tone-accent' : item.ok ? 'tone-good' : 'tone-bad')} aria-hidden="true">${isOpen ? '▸' : item.ok ? '✔' : '✘'}</span>
      <b class="mono">${item.name}</b> <span class="brief mono faint">${String(brief ?? '').split('\n')[0].slice(0, 160)}</span>
      <span class="grow"></span><span class="num faint">${isOpen ? 'running' : duration(item.durationMs)}</span></summary>
    ${edits.map((/** @type {Loose} */ edit) => html`<${Diff} diff=${edit} />`)}
    ${input && !edits.length && html`<p class="part">arguments</p><${Folded} value=${input} label=${`Arguments of ${item.name}`} />`}
    ${item.output !== undefined && html`<p class="part">${item.ok === false ? 'failed' : 'result'}</p><${Folded} value=${plain(text(item.output))} label=${`Result of ${item.name}`} />`}
    <${Cut} item=${item} />
  </details>`;
}

/** @param {{ item: Loose, isOpen: boolean }} _ */
function Item({ item, isOpen }) {
  switch (item.kind) {
    case 'prompt':
      return html`<div class="it-prompt"><p class="part">${item.text ? 'prompt' : 'input'}${item.attempt > 1 ? `, attempt ${item.attempt}` : ''}${item.pass > 1 ? `, pass ${item.pass}` : ''}</p>
        ${item.text ? html`<${Folded} value=${item.text} label="Prompt" lines=${10} />` : item.input !== undefined && item.input !== null ? html`<${Folded} value=${text(item.input)} label="Input" lines=${10} />` : null}
        ${item.text && item.input && Object.keys(item.input).length > 1 && html`<details><summary class="link">whole input</summary><${Folded} value=${text(item.input)} label="Input" lines=${30} /></details>`}<${Cut} item=${item} /></div>`;
    case 'text':
      return html`<div class=${cls('it-text', item.retracted && 'void')}><${Markdown} text=${item.text} />${item.retracted && html`<p class="faint">void: the vendor's stream broke and began anew</p>`}</div>`;
    case 'thinking':
      return html`<details class=${cls('it-thinking', item.retracted && 'void')} open><summary class="part">thinking</summary><${Markdown} text=${item.text} /></details>`;
    case 'tool':
      return html`<${Tool} item=${item} />`;
    case 'exec':
      return html`<div class=${cls('it-exec', item.stream)}><p class="part">${item.stream}</p><${Folded} value=${plain(item.text.replace(/\n$/, ''))} label=${item.stream} lines=${30} />${item.truncated && html`<p class="faint">No more of it was recorded.</p>`}</div>`;
    case 'message':
      return html`<div class="it-message"><p class="part">${item.steers ? 'steering message' : 'message'}</p><p>${item.text}</p></div>`;
    case 'question':
      return html`<div class="it-question"><p class="part">question</p><${Markdown} text=${item.prompt.prompt} />
        ${item.answer ? html`<p class="answer"><span class="faint">${item.answer.isDefault ? 'nobody answered: the default' : 'answered'}</span> <b>${item.answer.choice ?? item.answer.content}</b>${item.answer.choice && item.answer.content ? ` ${item.answer.content}` : ''}</p>` : isOpen ? html`<p class="tone-warning">? waits for an answer</p>` : html`<p class="faint">not answered in this attempt</p>`}</div>`;
    case 'usage': {
      const { inputTokens, outputTokens, cacheReadTokens: cached, cacheCreationTokens } = item.usage;
      const read = `${count(inputTokens + cached + cacheCreationTokens)} tokens read${cached ? `, ${count(cached)} of them from the cache` : ''}`;
      return html`<p class="it-usage faint num">${[read, `${count(outputTokens)} written`, money(item.costUsd), item.context && filled(item.context)].filter(Boolean).join(' · ')}</p>`;
    }
    case 'warning':
      return html`<p class="tone-warning">! ${item.message} <span class="mono faint">${item.code}</span></p>`;
    case 'error':
      return html`<div class="box-error"><p><b>✘ ${item.error?.message ?? item.message ?? text(item.error)}</b></p>${item.willRetry && html`<p>Another attempt follows.</p>`}<p class="mono faint">${item.error?.code ?? ''}</p></div>`;
    case 'output':
      return html`<div class="it-output"><p class="part">output</p><${Folded} value=${text(item.output)} label="Output" lines=${24} /><${Cut} item=${item} /></div>`;
    case 'retract':
      return html`<p class="faint">The vendor's stream broke; what is marked above is void.</p>`;
    default:
      return html`<p class="faint it-note">${item.text ?? item.kind}</p>`;
  }
}

/** How much of its context a conversation fills. @param {{ usedTokens: number, windowTokens?: number }} context */
function filled({ usedTokens, windowTokens }) {
  if (!windowTokens) return `context ${count(usedTokens)}`;
  return `context ${count(usedTokens)} of ${count(windowTokens)} (${Math.round((usedTokens * 100) / windowTokens)}%)`;
}

/**
 * An item with its number. It is drawn again when it has changed: it is another object then.
 * @this {any} @param {{ id: string, item: Loose, query: Query, isOpen: boolean }} _
 */
function Row({ id, item, query, isOpen }) {
  this.shouldComponentUpdate = (/** @type {Loose} */ next) => next.item !== item || next.query !== query || next.isOpen !== isOpen;
  return html`<div class="item">
    <a class="item-seq num" href=${href(['s', id, 'log'], { ...query, event: item.seq, q: undefined, types: undefined })} title=${`event ${item.seq}, ${clockMs(item.at)}`}>${item.seq}</a>
    <div class="item-body"><${Item} item=${item} isOpen=${isOpen} /></div>
  </div>`;
}

/** @param {{ session: Session, path: string, isRunning: boolean, prompts?: Loose[] }} _ */
export function Stream({ session, path, isRunning, prompts = [] }) {
  const ref = useRef((null));
  const atEnd = useRef(true);
  const { items, total, attempts, error, isLoading, earlier, retry } = useStream(session, path, atEnd);
  useLayoutEffect(() => {
    const box = ref.current;
    if (box && atEnd.current && isRunning) box.scrollTop = box.scrollHeight;
  }, [items]);
  if (error && !items.length) return html`<${Failure} error=${error} retry=${retry} />`;
  if (isLoading && !items.length) return html`<${Loading} what="what happened" />`;
  // A later attempt asks the same question again.
  const open = new Set(prompts.map((one) => items.findLast((item) => item.prompt?.promptId === one.promptId)));
  const before = items[0]?.index ?? 0;
  return html`<div class="stream" ref=${ref} tabindex="0" role="log" aria-label=${`What happened in ${path}`} aria-live="off"
      onScroll=${({ target }) => {
        atEnd.current = isAtEnd(target);
      }}>
    ${attempts.length > 1 && html`<label class="inline"><span>Show</span><select value=${route.value.query.attempt ?? ''} onChange=${(event) => setQuery({ attempt: event.target.value || undefined })}>
      <option value="">all attempts</option>${attempts.map((one) => html`<option value=${`${one.pass}.${one.attempt}`}>${attempts.at(-1)?.pass === 1 ? '' : `pass ${one.pass}, `}attempt ${one.attempt}</option>`)}
    </select></label>`}
    ${before > 0 && total > items.length && html`<p class="more"><button type="button" class="button small" onClick=${earlier}>Show earlier: ${before} of ${total}</button></p>`}
    ${items.length === 0 && html`<${Empty} title="Nothing happened here yet" />`}
    ${items.map((item) => html`<${Row} key=${item.index ?? item.seq} id=${session.id} item=${item} query=${route.value.query} isOpen=${open.has(item)} />`)}
  </div>`;
}
