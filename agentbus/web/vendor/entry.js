// What the dashboard uses of other projects. build.py bundles it into static/vendor.js.
export { h, render, Fragment, createRef } from "preact";
export { useEffect, useLayoutEffect, useMemo, useRef, useState, useCallback } from "preact/hooks";
export { signal, computed, effect, batch, untracked } from "@preact/signals";
export { default as htm } from "htm";
