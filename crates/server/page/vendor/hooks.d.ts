// What the page uses of `hooks.js`, in types.

type Inputs = ReadonlyArray<unknown>;
type Effect = () => void | (() => void);

export function useState(initial: null): [any, (next: any) => void];
export function useState<T>(initial: T | (() => T)): [T, (next: T | ((old: T) => T)) => void];
export function useRef(initial: null): { current: any };
export function useRef<T>(initial: T): { current: T };
export function useMemo<T>(make: () => T, inputs: Inputs): T;
export function useErrorBoundary(report: (failure: any) => void): [any, () => void];
export function useEffect(effect: Effect, inputs?: Inputs): void;
export function useLayoutEffect(effect: Effect, inputs?: Inputs): void;
