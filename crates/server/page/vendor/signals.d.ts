// `signals.js` makes components follow signals; nothing of it is called.
export {};
