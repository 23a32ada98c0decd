// A worker that shares the rows of an image with another one, until it is ended.

import { serve } from "../core/engine.js";

onmessage = ({ data }) => serve(data, () => postMessage("ready"));
