// The last request as programs send it, and the same request in every other dialect.

import { useEffect, useRef, useState } from "preact/hooks";
import { ServerError, key, path, post } from "./api";
import { CopyButton } from "./copy";
import { lastRequest, requestFor, turns } from "./conversation";
import { stringify } from "./json";
import { paths } from "./openapi";
import { shortened, spelledOut } from "./visible";

interface Call {
    method: string;
    /** The path on this server, without the slash before it. */
    to: string;
    body: unknown;
}

/** More of an answer is not shown here. */
const MOST = 100_000;

/** What `POST /explain` says of a request. */
interface Explained {
    accepted: boolean;
    error: { message: string } | null;
    fields: { name: string; fate: string }[];
    requests: {
        prompt: { tokens: number; cached_tokens: number };
        max_tokens: number;
        steps: { name: string; does?: string }[];
        estimate: { compute_s?: number | null; wait_s?: number | null };
    }[];
    others: {
        dialect: string;
        method: string;
        path: string;
        body: unknown;
        lost: { parameter: string; asked: unknown; gets: unknown }[];
        error: string;
    }[];
}

const LANGUAGES = ["curl", "Python", "JavaScript"] as const;
type Language = (typeof LANGUAGES)[number];

function quoted(text: string): string {
    return `'${text.replaceAll("'", "'\\''")}'`;
}

/** Returns a JSON value as Python writes it. */
function python(value: unknown): string {
    if (value === null || value === undefined) return "None";
    if (value === true) return "True";
    if (value === false) return "False";
    if (Array.isArray(value)) return `[${value.map(python).join(", ")}]`;
    if (typeof value === "object")
        return `{${Object.entries(value)
            .map(([name, each]) => `${JSON.stringify(name)}: ${python(each)}`)
            .join(", ")}}`;
    return stringify(value);
}

/** Returns a program that sends the request. `keyed`: with the API key in the variable API_KEY. */
export function program(language: Language, call: Call, keyed: boolean): string {
    const lines = { curl: curlOf, Python: pythonOf, JavaScript: javascriptOf }[language](call, keyed);
    return lines.join("\n");
}

function curlOf({ method, to, body }: Call, keyed: boolean): string[] {
    const content = stringify(body);
    // From standard input where it has images: Linux takes no argument of more than 128 KiB.
    const data = content.length > 30_000 ? ["  -d @- <<'END'", content, "END"] : [`  -d ${quoted(content)}`];
    return [
        `curl ${quoted(path(to))} -X ${method} \\`,
        "  -H 'content-type: application/json' \\",
        ...(keyed ? ['  -H "authorization: Bearer $API_KEY" \\'] : []),
        ...data,
    ];
}

function pythonOf({ method, to, body }: Call, keyed: boolean): string[] {
    const fields = body && typeof body === "object" && !Array.isArray(body) ? Object.entries(body) : null;
    const lines = fields?.map(([name, value]) => `    ${JSON.stringify(name)}: ${python(value)},`);
    return [
        ...(keyed ? ["import os", ""] : []),
        "import httpx",
        "",
        ...(lines ? ["body = {", ...lines, "}"] : [`body = ${python(body)}`]),
        keyed ? `headers = {"authorization": f"Bearer {os.environ['API_KEY']}"}` : "headers = {}",
        `answer = httpx.request("${method}", ${JSON.stringify(path(to))}, json=body, headers=headers, timeout=None)`,
        "print(answer.text)",
    ];
}

function javascriptOf({ method, to, body }: Call, keyed: boolean): string[] {
    const more = keyed ? ", authorization: `Bearer ${process.env.API_KEY}`" : "";
    return [
        // As text: JavaScript's numbers would lose digits of a seed.
        `const body = ${JSON.stringify(stringify(body))};`,
        `const headers = { "content-type": "application/json"${more} };`,
        `const answer = await fetch(${JSON.stringify(path(to))}, { method: "${method}", headers, body });`,
        "console.log(await answer.text());",
    ];
}

function Program({ call, name }: { call: Call; name: string }) {
    const [language, setLanguage] = useState<Language>("curl");
    const text = program(language, call, key.value !== "");
    return (
        <figure class="code">
            <figcaption>
                <span role="group" aria-label={`Language of ${name}`}>
                    {LANGUAGES.map((each) => (
                        <button
                            key={each}
                            type="button"
                            class="quiet"
                            aria-pressed={each === language}
                            onClick={() => setLanguage(each)}
                        >
                            {each}
                        </button>
                    ))}
                </span>
                <CopyButton text={text} />
            </figcaption>
            <pre tabIndex={0} dir="ltr">
                <code>{shortened(text)}</code>
            </pre>
            <Outcome call={call} name={name} />
        </figure>
    );
}

/** A button that sends the request, and its answer as it came: each dialect has its own words. */
function Outcome({ call, name }: { call: Call; name: string }) {
    const [answer, setAnswer] = useState("");
    const [state, setState] = useState("");
    const sent = useRef<AbortController | null>(null);
    const content = stringify(call.body);
    useEffect(() => {
        setAnswer("");
        setState("");
        return () => sent.current?.abort();
    }, [content]);
    const run = async () => {
        const abort = (sent.current = new AbortController());
        setAnswer("");
        setState("Waiting for the answer …");
        try {
            const text = await (await post(call.to, call.body, abort.signal)).text();
            setAnswer(text.length > MOST ? `${text.slice(0, MOST)} …` : text);
            setState("Answer:");
        } catch (error) {
            if (abort.signal.aborted) return;
            setAnswer((error as Error).message);
            setState(error instanceof ServerError ? `Refused with status ${error.status}:` : "There is no answer:");
        }
        sent.current = null;
    };
    return (
        <div class="outcome">
            <p class="actions">
                <button type="button" class="quiet" aria-label={`Send it to ${name}`} onClick={() => void run()}>
                    Send it
                </button>
                <span role="status">{state}</span>
            </p>
            {answer && (
                <pre tabIndex={0} dir="ltr" aria-label={`Answer of ${name}`}>
                    <code>{spelledOut(answer)}</code>
                </pre>
            )}
        </div>
    );
}

function Others({ request }: { request: { endpoint: string; body: Record<string, unknown> } }) {
    const [explained, setExplained] = useState<Explained | null>(null);
    const [failure, setFailure] = useState("");
    useEffect(() => {
        let current = true;
        setExplained(null);
        setFailure("");
        post("explain", { path: `/openai/v1/${request.endpoint}`, body: request.body, tokens: false })
            .then((answer) => answer.json() as Promise<Explained>)
            .then(
                (answer) => current && setExplained(answer),
                (error: Error) => current && setFailure(error.message),
            );
        return () => void (current = false);
    }, [request]);
    if (failure)
        return (
            <p class="error" role="alert">
                {failure}
            </p>
        );
    if (!explained) return <p role="status">Asking the server …</p>;
    const first = explained.requests[0];
    return (
        <>
            {explained.error && <p class="error">{explained.error.message}</p>}
            {first && (
                <p>
                    The prompt has {first.prompt.tokens} tokens, of which {first.prompt.cached_tokens} are cached; at
                    most {first.max_tokens} are generated.
                    {first.steps.length > 0 && ` Sampling: ${first.steps.map((step) => step.name).join(", ")}.`}
                </p>
            )}
            {explained.others.map((other) => (
                <section key={other.dialect} aria-label={other.dialect}>
                    <h3>{other.dialect}</h3>
                    {other.error ? (
                        <p class="note">It cannot be said there: {other.error}</p>
                    ) : (
                        <>
                            {other.lost.length > 0 && (
                                <p class="note">
                                    Different there:{" "}
                                    {other.lost
                                        .map(
                                            (each) =>
                                                `${each.parameter} (${stringify(each.asked)} here, ${stringify(each.gets)} there)`,
                                        )
                                        .join("; ")}
                                    .
                                </p>
                            )}
                            <Program
                                name={other.dialect}
                                call={{ method: other.method, to: other.path.slice(1), body: other.body }}
                            />
                        </>
                    )}
                </section>
            ))}
        </>
    );
}

export function Requests() {
    let request = lastRequest.value;
    let failure = "";
    if (!request) {
        try {
            request = requestFor([...turns.value, { kind: "question", text: "Hello", pictures: [] }]);
        } catch (error) {
            failure = (error as Error).message;
        }
    }
    const [settled] = useState(request);
    const shown = lastRequest.value ?? settled;
    return (
        <div class="requests">
            <h2>{lastRequest.value ? "The last request" : "A request with the present settings"}</h2>
            {failure && (
                <p class="error" role="alert">
                    {failure}
                </p>
            )}
            {shown && (
                <>
                    <h3>openai</h3>
                    <Program
                        name="openai"
                        call={{ method: "POST", to: `openai/v1/${shown.endpoint}`, body: shown.body }}
                    />
                    {paths.value.has("/explain") && (
                        <>
                            <h2>The same request in other dialects</h2>
                            <Others request={shown} />
                        </>
                    )}
                </>
            )}
        </div>
    );
}
