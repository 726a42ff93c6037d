// Requests to the server that the page came from.

import { signal } from "@preact/signals";
import { stringify } from "./json";

const own = import.meta.url;

/** Where the server's paths begin: the page may be served under a prefix. */
export const root = import.meta.env.DEV ? location.origin + "/" : new URL("..", own).href;

const STORED = "dragoman-key";

/** The API key: kept for this tab, until it is closed. */
export const key = signal(stored());

/** Whether the server has refused a request for its key. */
export const keyWanted = signal("");

/** Returns the key of this tab; none where the browser keeps no data of pages. */
function stored(): string {
    try {
        return sessionStorage.getItem(STORED) ?? "";
    } catch {
        return "";
    }
}

export function setKey(value: string): void {
    key.value = value.trim();
    keyWanted.value = "";
    try {
        if (key.value) sessionStorage.setItem(STORED, key.value);
        else sessionStorage.removeItem(STORED);
    } catch {
        // it is kept until the page is loaded again
    }
}

/** Returns a text as a header takes it: each of its bytes in UTF-8 as a character. */
function inHeader(text: string): string {
    return String.fromCharCode(...new TextEncoder().encode(text));
}

export class ServerError extends Error {
    constructor(
        message: string,
        readonly status: number,
    ) {
        super(message);
    }
}

/** The server answered no more before its answer was complete. */
export class ConnectionLost extends Error {}

export function path(relative: string): string {
    return root + relative;
}

/** Sends a request; throws ServerError for a refusal and ConnectionLost without an answer. */
export async function send(relative: string, options: RequestInit = {}): Promise<Response> {
    const headers = new Headers(options.headers);
    if (key.value) headers.set("authorization", `Bearer ${inHeader(key.value)}`);
    let answer: Response;
    try {
        answer = await fetch(path(relative), { ...options, headers, credentials: "omit", cache: "no-store" });
    } catch (error) {
        if (options.signal?.aborted) throw error;
        throw new ConnectionLost("The server cannot be reached.");
    }
    if (answer.ok) return answer;
    const message = errorMessage(await answer.text(), answer.status);
    if (answer.status === 401) keyWanted.value = message;
    throw new ServerError(message, answer.status);
}

export async function getJson<T>(relative: string): Promise<T> {
    return (await send(relative)).json() as Promise<T>;
}

export function post(relative: string, body: unknown, signal?: AbortSignal): Promise<Response> {
    const headers = { "content-type": "application/json" };
    return send(relative, { method: "POST", headers, body: stringify(body), signal: signal ?? null });
}

function errorMessage(text: string, status: number): string {
    try {
        const body = JSON.parse(text);
        const said = body.error?.message ?? body.error ?? body.message ?? body.detail;
        if (typeof said === "string") return said;
    } catch {
        // not JSON: shown as it is
    }
    const title = /^\s*<[^]*<title>([^<]+)<\/title>/i.exec(text)?.[1]?.trim();
    if (title) return `A proxy before the server has answered: ${title}.`;
    return text.slice(0, 500) || `The server answered with status ${status}.`;
}

/** Yields the data of each server-sent event, without the final mark. Throws ConnectionLost where that is missing. */
export async function* events(answer: Response, signal: AbortSignal): AsyncGenerator<string> {
    const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
    let buffer = "";
    try {
        for (;;) {
            const { value, done } = await reader.read();
            if (done) break;
            const lines = (buffer + value).split("\n");
            buffer = lines.pop()!;
            for (const line of lines) {
                if (!line.startsWith("data:")) continue;
                const data = line.slice(5).trim();
                if (data === "[DONE]") return;
                yield data;
            }
        }
    } catch (error) {
        if (signal.aborted) throw error;
    } finally {
        reader.cancel().catch(() => undefined);
    }
    throw new ConnectionLost("The connection was lost before the answer was complete. Its text so far is kept.");
}
