// The conversation on the page: its messages, and the requests that add to it. It is kept in memory alone.

import { type Signal, signal } from "@preact/signals";
import { type Answer, type Token, emptyAnswer, generate, textOf } from "./answer";
import { refuseMistakes } from "./mistake";
import { chatFields, completionFields } from "./openapi";
import type { Picture } from "./pictures";
import { contextTokens, model, mode, requestFields, system, values } from "./settings";

export interface Question {
    kind: "question";
    text: string;
    pictures: Picture[];
}

export interface Reply {
    kind: "reply";
    answers: Answer[];
    /** The answer that the conversation goes on from. */
    picked: number;
    /** What the tools returned, by call, once it is sent. */
    results: { id: string; text: string }[];
    /** Counts the changes inside of it, for the components that show it: what grows is drawn, not the whole page. */
    version: Signal<number>;
}

export type Turn = Question | Reply;

export const turns = signal<Turn[]>([]);

/** A mistake in the request, found before it is sent. */
export const problem = signal("");

export const running = signal(false);

/** The newest request: its path and its body. */
export const lastRequest = signal<{ endpoint: string; body: Record<string, unknown> } | null>(null);

let abort: AbortController | null = null;
const scheduled = new Set<Reply>();

/** Has a reply drawn again, at most once for each frame. */
function changed(reply: Reply): void {
    if (scheduled.has(reply)) return;
    scheduled.add(reply);
    requestAnimationFrame(() => {
        scheduled.delete(reply);
        reply.version.value++;
    });
}

export function stop(): void {
    abort?.abort();
}

export function clear(): void {
    stop();
    turns.value = [];
}

type Message = Record<string, unknown>;

/** Returns what a question says: its text, or parts where it has images. */
function contentOf({ text, pictures }: Question): unknown {
    if (!pictures.length) return text;
    const parts: Message[] = pictures.map(({ url }) => ({ type: "image_url", image_url: { url } }));
    return text ? [...parts, { type: "text", text }] : parts;
}

/** Whether an answer failed, or was stopped, before it said anything. */
export function isWithoutAnswer(answer: Answer): boolean {
    return (answer.state === "failed" || answer.state === "stopped") && !answer.text && !answer.calls.length;
}

/** Returns the messages of the turns, for a request. A question without an answer is left out: what was wrong with it,
 * such as images that are too large together, would be wrong with every request after it. */
export function messagesOf(list: readonly Turn[]): Message[] {
    const messages: Message[] = system.value.trim() ? [{ role: "system", content: system.value }] : [];
    for (const turn of list) {
        if (turn.kind === "question") messages.push({ role: "user", content: contentOf(turn) });
        else {
            const answer = turn.answers[turn.picked]!;
            if (isWithoutAnswer(answer)) {
                if (messages.at(-1)?.["role"] === "user") messages.pop();
                continue;
            }
            const message: Message = { role: "assistant", content: answer.text };
            if (answer.calls.length) {
                message["tool_calls"] = answer.calls.map((call) => ({
                    id: call.id,
                    type: "function",
                    function: { name: call.name, arguments: call.arguments },
                }));
                if (!answer.text) message["content"] = null;
            }
            messages.push(message);
            for (const result of turn.results)
                messages.push({ role: "tool", tool_call_id: result.id, content: result.text });
        }
    }
    return messages;
}

/** Returns the request that the next question would send. Throws where a field is not what it should be. */
export function requestFor(list: readonly Turn[]): {
    endpoint: "chat/completions" | "completions";
    body: Record<string, unknown>;
} {
    if (mode.value === "chat")
        return { endpoint: "chat/completions", body: { messages: messagesOf(list), ...requestFields("chat") } };
    const last = list.at(-1);
    const prompt = last?.kind === "question" ? last.text : "";
    return { endpoint: "completions", body: { prompt, ...requestFields("completion") } };
}

function label(): string {
    const parts = [model.value];
    for (const [name, value] of Object.entries(values.value))
        parts.push(`${name} ${typeof value === "object" ? "…" : value}`);
    return parts.join(", ");
}

async function run(
    reply: Reply,
    made: { endpoint: "chat/completions" | "completions"; body: Record<string, unknown> },
    answers: Answer[],
): Promise<void> {
    reply.answers.push(...answers);
    reply.picked = reply.answers.length - answers.length;
    problem.value = "";
    lastRequest.value = { endpoint: made.endpoint, body: made.body };
    abort = new AbortController();
    running.value = true;
    changed(reply);
    try {
        await generate(made.endpoint, made.body, answers, () => changed(reply), abort.signal);
    } finally {
        running.value = false;
    }
}

function choices(body: Record<string, unknown>): Answer[] {
    // A number that the server refuses has one answer, which shows why.
    const most = chatFields.value.find((field) => field.name === "n")?.kind.maximum ?? 1;
    const asked = typeof body["n"] === "number" ? body["n"] : 1;
    const n = asked >= 1 && asked <= most ? asked : 1;
    return Array.from({ length: n }, (_, i) =>
        emptyAnswer(n > 1 ? `${label()}, choice ${i + 1}` : label(), model.value),
    );
}

/** Answers the turns so far in a new reply. */
async function answer(list: Turn[]): Promise<void> {
    let made;
    try {
        made = requestFor(list);
    } catch (error) {
        problem.value = (error as Error).message;
        return;
    }
    const reply: Reply = { kind: "reply", answers: [], picked: 0, results: [], version: signal(0) };
    turns.value = [...list, reply];
    await run(reply, made, choices(made.body));
}

export function ask(text: string, pictures: Picture[] = []): Promise<void> {
    const before = mode.value === "chat" ? turns.value : [];
    return answer([...before, { kind: "question", text, pictures }]);
}

/** Sends a question again, with another text or the same one, and its images; what followed it is dropped. */
export function resend(index: number, text: string): Promise<void> {
    const { pictures } = turns.value[index] as Question;
    return answer([...turns.value.slice(0, index), { kind: "question", text, pictures }]);
}

/** Sends what the tools returned, and the calls as they were edited. */
export function sendResults(index: number, calls: Answer["calls"], results: Reply["results"]): Promise<void> {
    const reply = turns.value[index] as Reply;
    reply.answers[reply.picked]!.calls = calls;
    reply.results = results;
    reply.version.value++;
    return answer(turns.value.slice(0, index + 1));
}

/** Adds an answer to the same turns, with the settings as they are now, next to the answers that there are. */
export async function answerBeside(index: number): Promise<void> {
    const reply = turns.value[index] as Reply;
    let made;
    try {
        made = requestFor(turns.value.slice(0, index));
    } catch (error) {
        problem.value = (error as Error).message;
        return;
    }
    turns.value = turns.value.slice(0, index + 1);
    reply.results = [];
    await run(reply, made, choices(made.body));
}

/** Fields that a fork leaves out: what they demand of an answer cannot begin in its middle. */
const WHOLE_ANSWER = new Set([
    "n",
    "best_of",
    "suffix",
    "response_format",
    "structured_outputs",
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "forced_output_tokens",
    "truncate_prompt_tokens",
    "use_beam_search",
    "num_beams",
    "min_tokens",
]);

/** Continues an answer from another token in place of one of its own: the tokens before it are the same. */
export async function fork(index: number, of: Answer, position: number, token: Token["top"][number]): Promise<void> {
    const reply = turns.value[index] as Reply;
    const kept = of.tokens.slice(0, position);
    const replaced = of.tokens[position]!;
    const ids = [...of.promptIds, ...kept.map((each) => each.id), token.id];
    const known = new Set(completionFields.value.map((field) => field.name));
    const body: Record<string, unknown> = { model: of.model, prompt: ids, logprobs: 5, return_token_ids: true };
    for (const [name, value] of Object.entries(values.value))
        if (known.has(name) && !WHOLE_ANSWER.has(name)) body[name] = value;
    try {
        refuseMistakes(body);
    } catch (error) {
        problem.value = (error as Error).message;
        return;
    }
    const most = values.value["max_tokens"] ?? values.value["max_completion_tokens"];
    const room = contextTokens.value - ids.length;
    body["max_tokens"] = Math.max(1, typeof most === "number" ? most - position - 1 : Math.min(room, 512));
    const made = emptyAnswer(`fork at token ${position + 1}`, of.model);
    made.tokens = [...kept, { ...token, top: replaced.top }];
    made.promptIds = of.promptIds;
    const trimmed = of.tokens[0] && textOf([of.tokens[0]]).startsWith(" ") && !of.text.startsWith(" ");
    const before = textOf(made.tokens);
    made.text = trimmed ? before.replace(/^ /, "") : before;
    turns.value = turns.value.slice(0, index + 1);
    reply.results = [];
    await run(reply, { endpoint: "completions", body }, [made]);
    // The request's prompt has tokens of the answer at its end.
    made.promptIds = of.promptIds;
    reply.version.value++;
}

export function pick(index: number, which: number): void {
    const reply = turns.value[index] as Reply;
    reply.picked = which;
    reply.version.value++;
}
