// The scrubber: any moment of the session by its sequence number, and the replay.

import { cls, html, perFrame, useEffect, useRef, useState } from './dom.js';
import { clockMs, grouped } from './format.js';
import { route, setQuery } from './route.js';
import { shownAt } from './session.js';
import { events } from './source.js';

const SPEEDS = [1, 5, 25];
/** A longer wait is shortened to this in a replay. */
const LONGEST_WAIT = 1500;
const PAGE = 500;

/** Plays a session from an event on. @param {Session} session @param {number} speed @param {() => void} onEnd */
function useReplay(session, speed, onEnd) {
  useEffect(() => {
    if (!speed) return undefined;
    let isOver = false;
    let frame = 0;
    // Another view may be shown before this one has ended.
    const isLeft = () => isOver || route.value.path[1] !== session.id;
    (async () => {
      let seq = session.at.value ?? 0;
      if (seq >= session.lastSeq.value || !session.at.value) seq = 1;
      /** @type {any[]} */
      let page = [];
      let started = performance.now();
      let played = 0;
      let before = NaN;
      const step = async () => {
        if (isLeft()) return;
        const budget = (performance.now() - started) * speed;
        while (played <= budget) {
          if (!page.length) page = await events(session.id, { from: seq + 1, limit: PAGE });
          if (isLeft()) return;
          const next = page.shift();
          if (!next) {
            setQuery({ at: seq });
            onEnd();
            return;
          }
          const at = new Date(next.timestamp).getTime();
          played += Number.isNaN(before) ? 0 : Math.min(LONGEST_WAIT, Math.max(0, at - before));
          before = at;
          seq = next.seq;
        }
        setQuery({ at: seq });
        frame = requestAnimationFrame(() => step().catch(onEnd));
      };
      await step();
    })().catch(onEnd);
    return () => {
      isOver = true;
      cancelAnimationFrame(frame);
    };
  }, [speed]);
}

/** @param {{ session: Session, state: State }} _ */
export function Scrubber({ session, state }) {
  const last = session.lastSeq.value;
  const at = session.at.value;
  const [speed, setSpeed] = useState(0);
  const chosenSpeed = useRef(5);
  useReplay(session, speed, () => setSpeed(0));
  const move = useRef(perFrame((value, most) => setQuery({ at: value >= most ? undefined : value })));
  const toggle = () => setSpeed((old) => (old ? 0 : chosenSpeed.current));
  useEffect(() => {
    document.addEventListener('replay', toggle);
    return () => document.removeEventListener('replay', toggle);
  }, []);
  const place = at ?? last;
  return html`<footer class=${cls('scrub', at && 'past')} aria-label="Moments of the session">
    <button type="button" class="icon play" aria-label=${speed ? 'Pause the replay' : 'Play the session'} onClick=${toggle}>${speed ? '❚❚' : '▶'}</button>
    <div class="switch" role="group" aria-label="Speed of the replay">
      ${SPEEDS.map((one) => html`<button type="button" aria-pressed=${(speed || chosenSpeed.current) === one} onClick=${() => {
        chosenSpeed.current = one;
        setSpeed((old) => (old ? one : 0));
        setQuery({});
      }}>${one}×</button>`)}
    </div>
    <input type="range" min="1" max=${Math.max(1, last)} value=${place} step="1" aria-label="Event" aria-valuetext=${`event ${at ? shownAt(session, state) : last} of ${last}`}
      style=${{ '--part': `${last > 1 ? ((place - 1) / (last - 1)) * 100 : 100}%` }}
      onInput=${(event) => {
        setSpeed(0);
        move.current(Number(event.target.value), last);
      }} />
    <span class="scrub-at num">${at ? html`<b>${grouped(shownAt(session, state))}</b> of ${grouped(last)}` : html`event <b>${grouped(last)}</b>`}<span class="faint scrub-time"> ${at && state.at ? clockMs(state.at) : ''}</span></span>
    ${at
      ? html`<button type="button" class="button main small" onClick=${() => {
          setSpeed(0);
          setQuery({ at: undefined });
        }}>To the newest</button>`
      : html`<span class="scrub-now faint">newest</span>`}
  </footer>`;
}
