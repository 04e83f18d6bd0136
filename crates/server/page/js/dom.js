// The few functions of the vendored libraries that the page uses, in one place.

import { h as element, render, Fragment } from '../vendor/preact.js';
import { useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState } from '../vendor/hooks.js';
import { batch, computed, effect, signal, untracked } from '../vendor/signals-core.js';
import '../vendor/signals.js';
import htm from '../vendor/htm.js';
import { visible } from './format.js';

/** @param {any} child @returns {any} */
const safe = (child) => (typeof child === 'string' ? visible(child) : Array.isArray(child) ? child.map(safe) : child);

/**
 * An element. All text of the page goes through here, so no text can hide a part of itself.
 * @param {any} type @param {Loose | null} props @param {any[]} children
 */
export function h(type, props, ...children) {
  if (typeof type === 'string' && props) for (const name of ['title', 'aria-label']) if (props[name]) props[name] = visible(props[name]);
  return element(type, props, ...children.map(safe));
}

/** Markup as a tagged template. */
export const html = htm.bind(h);

export { Fragment, batch, computed, effect, render, signal, untracked, useEffect, useErrorBoundary, useLayoutEffect, useMemo, useRef, useState };

/** Class names, without those that do not apply. */
export const cls = (/** @type {unknown[]} */ ...names) => names.filter(Boolean).join(' ');

/**
 * The size of an element, followed as it changes.
 * @param {{ current: Element | null }} ref
 */
export function useSize(ref) {
  const [size, setSize] = useState({ w: 0, h: 0 });
  useLayoutEffect(() => {
    const element = ref.current;
    if (!element) return undefined;
    const read = () => {
      const box = element.getBoundingClientRect();
      setSize((old) => (old.w === box.width && old.h === box.height ? old : { w: box.width, h: box.height }));
    };
    read();
    const observer = new ResizeObserver(read);
    observer.observe(element);
    return () => observer.disconnect();
  }, []);
  return size;
}

/**
 * Joins quick calls: at most one for each frame of the screen.
 * @param {(...args: any[]) => void} call
 */
export function perFrame(call) {
  let waiting = 0;
  /** @type {any[]} */
  let last = [];
  return (/** @type {any[]} */ ...args) => {
    last = args;
    waiting ||= requestAnimationFrame(() => {
      waiting = 0;
      call(...last);
    });
  };
}
