// The conversation: questions, answers, and the input of the next question.

import { memo } from "preact/compat";
import { useEffect, useRef, useState } from "preact/hooks";
import { type Answer, type Call, firstDifference, split } from "./answer";
import {
    type Question,
    type Reply,
    answerBeside,
    ask,
    clear,
    fork,
    isWithoutAnswer,
    pick,
    problem,
    resend,
    running,
    sendResults,
    stop,
    turns,
} from "./conversation";
import { ObjectForm, schemaFrom } from "./form";
import { parse, stringify } from "./json";
import { Markdown } from "./markdown";
import { refuseMistakes } from "./mistake";
import { ChooseFiles, type Picture, Thumbnails, filesOf, readPictures } from "./pictures";
import type { Schema } from "./openapi";
import { mode, seesImages, tools } from "./settings";
import { Tokens } from "./tokens";

const QuestionView = memo(function QuestionView({ turn, index }: { turn: Question; index: number }) {
    const [draft, setDraft] = useState<string | null>(null);
    const editor = useRef<HTMLTextAreaElement>(null);
    const edit = useRef<HTMLButtonElement>(null);
    const isEdited = draft !== null;
    const wasEdited = useRef(false);
    // The button that was pressed is gone: the focus goes where its user goes on.
    useEffect(() => {
        if (isEdited) editor.current?.focus();
        else if (wasEdited.current) edit.current?.focus();
        wasEdited.current = isEdited;
    }, [isEdited]);
    return (
        <article class="question" aria-label="You">
            <h3>You</h3>
            <Thumbnails pictures={turn.pictures} />
            {draft === null ? (
                <>
                    <pre class="plain" dir="auto">
                        {turn.text}
                    </pre>
                    <p class="actions">
                        <button
                            ref={edit}
                            type="button"
                            class="quiet"
                            disabled={running}
                            onClick={() => setDraft(turn.text)}
                        >
                            Edit
                        </button>
                        <button type="button" class="quiet" disabled={running} onClick={() => resend(index, turn.text)}>
                            Send again
                        </button>
                    </p>
                </>
            ) : (
                <form
                    onSubmit={(event) => {
                        event.preventDefault();
                        setDraft(null);
                        void resend(index, draft);
                    }}
                >
                    <label class="sr" for={`edit-${index}`}>
                        Edited question
                    </label>
                    <textarea
                        ref={editor}
                        id={`edit-${index}`}
                        dir="auto"
                        rows={3}
                        value={draft}
                        onInput={(event) => setDraft(event.currentTarget.value)}
                    />
                    <p class="actions">
                        <button type="submit" disabled={running}>
                            Send
                        </button>
                        <button type="button" class="quiet" onClick={() => setDraft(null)}>
                            Cancel
                        </button>
                    </p>
                </form>
            )}
        </article>
    );
});

function seconds(ms: number): string {
    return ms < 1000 ? `${Math.round(ms)} ms` : `${(ms / 1000).toFixed(1)} s`;
}

function Figures({ answer }: { answer: Answer }) {
    const parts = [];
    if (answer.state === "running")
        return <p class="figures">{answer.text || answer.tokens.length ? "Writing …" : "Waiting …"}</p>;
    if (answer.newTokens) {
        const rate = answer.newTokens / ((answer.endedAt - answer.startedAt) / 1000);
        parts.push(
            `${answer.promptTokens} prompt tokens (${answer.cachedTokens} cached)`,
            `${answer.newTokens} new`,
            `${rate.toFixed(1)} tokens/s`,
        );
    }
    if (answer.firstAt) parts.push(`first after ${seconds(answer.firstAt - answer.startedAt)}`);
    if (answer.seed) parts.push(`seed ${answer.seed}`);
    if (answer.finish && answer.finish !== "stop") parts.push(`ended by ${answer.finish}`);
    if (answer.state === "stopped") parts.push("stopped");
    return (
        <>
            <p class="figures">{parts.join(" · ")}</p>
            {answer.warnings && <p class="note">Without effect: {answer.warnings}</p>}
        </>
    );
}

function schemaOf(name: string): Schema {
    try {
        return schemaFrom(JSON.parse(tools.value.find((tool) => tool.name === name)?.parameters ?? "{}"));
    } catch {
        return {};
    }
}

function argumentsOf(call: Call): Record<string, unknown> {
    try {
        const value = parse(call.arguments);
        return value && typeof value === "object" ? (value as Record<string, unknown>) : {};
    } catch {
        return {};
    }
}

/** The calls of an answer: their arguments in a form, and a place for what each tool returns. */
function Calls({ answer, turn, index }: { answer: Answer; turn: Reply; index: number }) {
    turn.version.value;
    const [edited, setEdited] = useState<Record<string, Record<string, unknown>>>({});
    const [results, setResults] = useState<Record<string, string>>({});
    const isSent = turn.results.length > 0;
    const finished = answer.state !== "running";
    return (
        <form
            class="calls"
            onSubmit={(event) => {
                event.preventDefault();
                try {
                    for (const each of Object.values(edited)) refuseMistakes(each);
                } catch (error) {
                    problem.value = (error as Error).message;
                    return;
                }
                const calls = answer.calls.map((call) =>
                    edited[call.id] ? { ...call, arguments: stringify(edited[call.id]) } : call,
                );
                void sendResults(
                    index,
                    calls,
                    calls.map((call) => ({ id: call.id, text: results[call.id] ?? "" })),
                );
            }}
        >
            {answer.calls.map((call, i) => (
                <fieldset key={call.id || i} disabled={isSent || !finished}>
                    <legend>
                        Call of <code>{call.name}</code>
                    </legend>
                    {finished ? (
                        <ObjectForm
                            id={`call-${index}-${i}`}
                            schema={schemaOf(call.name)}
                            value={edited[call.id] ?? argumentsOf(call)}
                            onValue={(value) => setEdited({ ...edited, [call.id]: value })}
                        />
                    ) : (
                        <pre class="plain" dir="auto">
                            {call.arguments}
                        </pre>
                    )}
                    <div class="field">
                        <label for={`result-${index}-${i}`}>What the tool returns</label>
                        <textarea
                            id={`result-${index}-${i}`}
                            dir="auto"
                            rows={2}
                            value={isSent ? (turn.results[i]?.text ?? "") : (results[call.id] ?? "")}
                            onInput={(event) => setResults({ ...results, [call.id]: event.currentTarget.value })}
                        />
                    </div>
                </fieldset>
            ))}
            {!isSent && finished && (
                <button type="submit" disabled={running}>
                    Send the results
                </button>
            )}
        </form>
    );
}

interface ReplyProps {
    turn: Reply;
    index: number;
    /** Whether a question before it has images. */
    sawImages: boolean;
}

function AnswerView({ turn, index, sawImages, which }: ReplyProps & { which: number }) {
    turn.version.value;
    const answer = turn.answers[which]!;
    const other = turn.answers[which === 0 ? 1 : 0];
    const [asTokens, setAsTokens] = useState(false);
    const { reasoning, content } = split(answer);
    const whole = answer.state !== "running";
    const name = turn.answers.length > 1 ? `answer ${which + 1}` : "the answer";
    const differs =
        other && other !== answer
            ? firstDifference(turn.answers[0]!.tokens, (which === 0 ? other : answer).tokens)
            : -1;
    return (
        <section
            class={which === turn.picked && turn.answers.length > 1 ? "answer picked" : "answer"}
            aria-label={name}
            aria-busy={!whole}
        >
            {turn.answers.length > 1 && (
                <p class="label">
                    <strong>Answer {which + 1}</strong> {answer.label}
                    {differs >= 0 && <span class="note"> First difference: token {differs + 1}.</span>}
                </p>
            )}
            {reasoning && (
                <details class="reasoning">
                    <summary>Reasoning</summary>
                    <pre class="plain" dir="auto">
                        {reasoning}
                    </pre>
                </details>
            )}
            {asTokens && answer.tokens.length > 0 ? (
                <Tokens
                    tokens={answer.tokens.slice()}
                    differs={differs}
                    name={name}
                    onFork={
                        whole && !running.value && answer.promptIds.length && !sawImages
                            ? (position, token) => void fork(index, answer, position, token)
                            : undefined
                    }
                />
            ) : (
                <Markdown text={content} whole={whole} />
            )}
            {asTokens && sawImages && (
                <p class="note">An answer about images cannot be forked: the ids of a prompt do not hold what it shows.</p>
            )}
            {answer.calls.length > 0 && which === turn.picked && <Calls answer={answer} turn={turn} index={index} />}
            {answer.error && (
                <p class="error" role="alert">
                    {answer.error}
                </p>
            )}
            <Figures answer={answer} />
            {isWithoutAnswer(answer) && which === turn.picked && (
                <p class="note">The questions that follow are sent without this one.</p>
            )}
            <p class="actions">
                {answer.tokens.length > 0 && (
                    <button type="button" class="quiet" aria-pressed={asTokens} onClick={() => setAsTokens(!asTokens)}>
                        Tokens
                    </button>
                )}
                {turn.answers.length > 1 && which !== turn.picked && (
                    <button type="button" class="quiet" disabled={running} onClick={() => pick(index, which)}>
                        Go on from this one
                    </button>
                )}
                {whole && which === turn.answers.length - 1 && (
                    <button type="button" class="quiet" disabled={running} onClick={() => answerBeside(index)}>
                        Another answer with the present settings
                    </button>
                )}
            </p>
        </section>
    );
}

const ReplyView = memo(function ReplyView({ turn, index, sawImages }: ReplyProps) {
    turn.version.value;
    return (
        <article class="reply" aria-label="Answer">
            <h3>Answer</h3>
            <div class={turn.answers.length > 1 ? "beside" : ""}>
                {turn.answers.map((_, which) => (
                    <AnswerView key={which} turn={turn} index={index} sawImages={sawImages} which={which} />
                ))}
            </div>
        </article>
    );
});

/** The turns: apart from the form, so that a long conversation is not gone through for each letter that is typed. */
const Turns = memo(function Turns() {
    let sawImages = false;
    return (
        <>
            {turns.value.map((turn, i) => {
                if (turn.kind === "reply") return <ReplyView key={i} turn={turn} index={i} sawImages={sawImages} />;
                sawImages ||= turn.pictures.length > 0;
                return <QuestionView key={i} turn={turn} index={i} />;
            })}
        </>
    );
});

/** Tells a screen reader when an answer begins and ends, not each of its words. */
function Announcement() {
    const last = turns.value.at(-1);
    if (last?.kind === "reply") last.version.value;
    const answer = last?.kind === "reply" ? last.answers[last.picked] : undefined;
    const text = !answer
        ? ""
        : answer.state === "running"
          ? "The answer is being written."
          : answer.state === "failed"
            ? ""
            : "The answer is complete.";
    return (
        <p class="sr" role="status">
            {text}
        </p>
    );
}

export function Chat() {
    const [text, setText] = useState("");
    const [pictures, setPictures] = useState<Picture[]>([]);
    const chat = useRef<HTMLDivElement>(null);
    // An answer is followed to its end from the question on, until the reader scrolls up or does something else.
    const follows = useRef(false);
    useEffect(() => {
        const page = document.documentElement;
        let before = scrollY;
        const watch = () => {
            if (scrollY < before) follows.current = false;
            if (running.value && innerHeight + scrollY >= page.scrollHeight - 120) follows.current = true;
            before = scrollY;
        };
        const release = () => {
            if (!running.value) follows.current = false;
        };
        // To the end of the page: the form stands over whatever is behind it.
        const growth = new ResizeObserver(() => follows.current && scrollTo(0, page.scrollHeight));
        growth.observe(chat.current!);
        addEventListener("scroll", watch, { passive: true });
        addEventListener("pointerdown", release, true);
        addEventListener("keydown", release, true);
        return () => {
            growth.disconnect();
            removeEventListener("scroll", watch);
            removeEventListener("pointerdown", release, true);
            removeEventListener("keydown", release, true);
        };
    }, []);
    const isChat = mode.value === "chat";
    const submit = () => {
        const sent = isChat ? pictures : [];
        if ((!text.trim() && !sent.length) || running.value) return;
        setText("");
        if (isChat) setPictures([]);
        follows.current = true;
        void ask(text, sent);
    };
    const add = async (files: File[]) => {
        problem.value = "";
        try {
            const read = await readPictures(files, pictures.length);
            setPictures((before) => [...before, ...read]);
        } catch (error) {
            problem.value = (error as Error).message;
        }
    };
    /** Takes the files of a paste or a drop; whatever else it brings is the browser's. */
    const take = (event: Event, files: File[]) => {
        if (!files.length || !seesImages.value) return;
        event.preventDefault();
        void add(files);
    };
    return (
        <div class="chat" ref={chat}>
            <h2 class="sr">Conversation</h2>
            <Turns />
            {turns.value.length === 0 && (
                <p class="note">{isChat ? "Ask something." : "Write a text for the model to continue."}</p>
            )}
            <Announcement />
            {problem.value && (
                <p class="error" role="alert">
                    {problem.value}
                </p>
            )}
            <form
                class="ask"
                onSubmit={(event) => {
                    event.preventDefault();
                    submit();
                }}
            >
                {isChat && (
                    <Thumbnails
                        pictures={pictures}
                        onRemove={(at) => setPictures(pictures.filter((_, i) => i !== at))}
                    />
                )}
                <label for="question">{isChat ? "Your message" : "The text to continue"}</label>
                <textarea
                    id="question"
                    dir="auto"
                    rows={isChat ? 2 : 5}
                    value={text}
                    onInput={(event) => setText(event.currentTarget.value)}
                    onPaste={(event) => take(event, filesOf(event.clipboardData))}
                    onDragOver={(event) =>
                        seesImages.value && event.dataTransfer?.types.includes("Files") && event.preventDefault()
                    }
                    onDrop={(event) => take(event, filesOf(event.dataTransfer))}
                    onKeyDown={(event) => {
                        if (event.key === "Enter" && !event.shiftKey && !event.isComposing && isChat) {
                            event.preventDefault();
                            submit();
                        }
                    }}
                />
                <p class="actions">
                    {running.value ? (
                        <button type="button" class="stop" onClick={stop}>
                            Stop
                        </button>
                    ) : (
                        <button type="submit">Send</button>
                    )}
                    {seesImages.value && <ChooseFiles onFiles={(files) => void add(files)} />}
                    {turns.value.length > 0 && (
                        <button type="button" class="quiet" disabled={running} onClick={clear}>
                            New conversation
                        </button>
                    )}
                </p>
            </form>
        </div>
    );
}
