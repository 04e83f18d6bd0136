// What the page uses of `signals-core.js`, in types.

export interface Signal<T> {
  value: T;
  peek(): T;
}

export function signal(value: null): Signal<any>;
export function signal<T>(value: T): Signal<T>;
export function computed<T>(work: () => T): Readonly<Signal<T>>;
export function effect(work: () => void): () => void;
export function batch(work: () => void): void;
export function untracked<T>(work: () => T): T;
