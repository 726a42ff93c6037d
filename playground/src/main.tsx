// The page: its parts, and the API key.

import { render } from "preact";
import { signal } from "@preact/signals";
import type { ComponentType } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { key, keyWanted, path, setKey } from "./api";
import { Chat } from "./chat";
import { loadFields } from "./openapi";
import { Panel } from "./panel";
import { Requests } from "./requests";
import { loadModels } from "./settings";
import "./style.css";

const VIEWS = ["Chat", "Server", "Requests"] as const;
const view = signal<(typeof VIEWS)[number]>("Chat");
const failure = signal("");

async function load(): Promise<void> {
    failure.value = "";
    try {
        await Promise.all([loadFields(), loadModels()]);
    } catch (error) {
        failure.value = (error as Error).message;
    }
}

function KeyForm({ onDone }: { onDone: () => void }) {
    const [text, setText] = useState(key.value);
    const input = useRef<HTMLInputElement>(null);
    useEffect(() => input.current?.focus(), []);
    return (
        <form
            class="key"
            onSubmit={(event) => {
                event.preventDefault();
                setKey(text);
                onDone();
                void load();
            }}
        >
            {keyWanted.value && (
                <p class="error" role="alert">
                    {keyWanted.value}
                </p>
            )}
            <label for="key">API key</label>
            <input
                ref={input}
                id="key"
                type="password"
                autocomplete="off"
                value={text}
                onInput={(event) => setText(event.currentTarget.value)}
            />
            <p class="help">It is kept in this tab until the tab is closed, and sent to this server alone.</p>
            <p class="actions">
                <button type="submit">Use this key</button>
                <button
                    type="button"
                    class="quiet"
                    onClick={() => {
                        setKey("");
                        onDone();
                    }}
                >
                    Use none
                </button>
            </p>
        </form>
    );
}

/** The charts come with a library, which is loaded when they are first looked at. */
function ServerView() {
    const [Part, setPart] = useState<ComponentType | null>(null);
    const [failed, setFailed] = useState(false);
    // Awaited: Vite takes a `then` at the import for a part of it, and does not hand it what fails before.
    const request = async () => {
        setFailed(false);
        try {
            const module = await import("./server");
            setPart(() => module.Server);
        } catch {
            setFailed(true);
        }
    };
    useEffect(() => void request(), []);
    if (Part) return <Part />;
    if (!failed) return <p role="status">Loading …</p>;
    return (
        <p class="error" role="alert">
            This part of the page cannot be loaded: the server does not answer, or has another version of it by now. Then
            load the page again.{" "}
            <button type="button" onClick={() => void request()}>
                Try again
            </button>
        </p>
    );
}

function Tabs() {
    const list = useRef<HTMLDivElement>(null);
    const move = (event: KeyboardEvent) => {
        const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
        if (!step) return;
        const next = (VIEWS.indexOf(view.value) + step + VIEWS.length) % VIEWS.length;
        view.value = VIEWS[next]!;
        (list.current?.children[next] as HTMLElement).focus();
    };
    return (
        <div ref={list} role="tablist" aria-label="Parts of the page" onKeyDown={move}>
            {VIEWS.map((each) => (
                <button
                    key={each}
                    id={`tab-${each}`}
                    type="button"
                    role="tab"
                    aria-selected={view.value === each}
                    aria-controls={`view-${each}`}
                    tabIndex={view.value === each ? 0 : -1}
                    onClick={() => (view.value = each)}
                >
                    {each}
                </button>
            ))}
        </div>
    );
}

function App() {
    const [keyShown, setKeyShown] = useState(false);
    const [panelShown, setPanelShown] = useState(innerWidth >= 900);
    const current = view.value;
    const asksForKey = keyShown || keyWanted.value !== "";
    return (
        <>
            <header>
                <h1>Dragoman</h1>
                <Tabs />
                <button type="button" class="quiet" aria-expanded={asksForKey} onClick={() => setKeyShown(!keyShown)}>
                    {key.value ? "API key (set)" : "API key"}
                </button>
                <button
                    type="button"
                    class="quiet"
                    aria-expanded={panelShown}
                    aria-controls="settings"
                    hidden={current !== "Chat"}
                    onClick={() => setPanelShown(!panelShown)}
                >
                    Settings
                </button>
            </header>
            {asksForKey && <KeyForm onDone={() => setKeyShown(false)} />}
            {failure.value && !asksForKey && (
                <p class="error" role="alert">
                    {failure.value}{" "}
                    <button type="button" onClick={load}>
                        Try again
                    </button>
                </p>
            )}
            <main class={current === "Chat" && panelShown ? "with-panel" : ""}>
                <aside id="settings" aria-label="Settings" hidden={current !== "Chat" || !panelShown}>
                    <Panel />
                </aside>
                {/* The chat stays: a draft, and what is opened in it, are part of it. */}
                {VIEWS.map((each) => (
                    <div
                        key={each}
                        id={`view-${each}`}
                        class="view"
                        role="tabpanel"
                        aria-labelledby={`tab-${each}`}
                        hidden={each !== current}
                    >
                        {each === "Chat" ? (
                            <Chat />
                        ) : each !== current ? null : each === "Server" ? (
                            <ServerView />
                        ) : (
                            <Requests />
                        )}
                    </div>
                ))}
            </main>
            <footer>
                <a href={path("docs")}>API documents</a> ·{" "}
                <a href={path("playground/licenses.txt")}>Licenses of this page</a>
            </footer>
        </>
    );
}

// A file dropped where nothing takes it would be opened in place of the page, and the chat be lost.
for (const kind of ["dragover", "drop"] as const) {
    window.addEventListener(kind, (event) => {
        if (event.defaultPrevented || !event.dataTransfer?.types.includes("Files")) return;
        event.preventDefault();
        event.dataTransfer.dropEffect = "none";
    });
}
render(<App />, document.getElementById("app")!);
void load();
