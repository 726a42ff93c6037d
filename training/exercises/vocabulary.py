"""The closed lists of words and facts that every exercise draws from."""

# ruff: noqa: SIM905 - words in one line read better than one word per line

PEOPLE = (
    "Anna Ben Clara David Ella Felix Grace Henry Ida Jack Kate Leo Mia Noah Olga Paul Rosa Sam Tina Victor "
    "Alice Bob Carla Daniel Emma Frank Hanna Ivan Julia Karl Laura Max Nina Oscar Peter Ruth Simon Tom Vera Will"
).split()

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "England": "London",
    "Ireland": "Dublin",
    "Scotland": "Edinburgh",
    "Austria": "Vienna",
    "Hungary": "Budapest",
    "Greece": "Athens",
    "Poland": "Warsaw",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Belgium": "Brussels",
    "Switzerland": "Bern",
    "Russia": "Moscow",
    "Ukraine": "Kyiv",
    "Turkey": "Ankara",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Japan": "Tokyo",
    "China": "Beijing",
    "India": "New Delhi",
    "Canada": "Ottawa",
    "Mexico": "Mexico City",
    "Cuba": "Havana",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Brazil": "Brasilia",
    "Australia": "Canberra",
    "the United States": "Washington",
    "the Netherlands": "Amsterdam",
    "the Czech Republic": "Prague",
}

CITIES = [*CAPITALS.values(), "New York", "San Francisco", "Boston", "Chicago", "Hamburg", "Milan", "Zurich", "Sydney"]

OPPOSITES = {
    "hot": "cold",
    "big": "small",
    "up": "down",
    "fast": "slow",
    "day": "night",
    "black": "white",
    "open": "closed",
    "old": "young",
    "happy": "sad",
    "high": "low",
    "light": "dark",
    "left": "right",
    "full": "empty",
    "rich": "poor",
    "wet": "dry",
    "hard": "soft",
    "early": "late",
    "long": "short",
    "near": "far",
    "loud": "quiet",
    "strong": "weak",
    "clean": "dirty",
    "first": "last",
    "true": "false",
    "good": "bad",
    "thick": "thin",
    "deep": "shallow",
    "always": "never",
    "begin": "end",
    "buy": "sell",
}

COLOURS = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "a banana": "yellow",
    "a tomato": "red",
    "a carrot": "orange",
    "milk": "white",
    "a lemon": "yellow",
    "a leaf": "green",
    "blood": "red",
    "the sun": "yellow",
    "chocolate": "brown",
    "a frog": "green",
    "a raven": "black",
    "a ripe strawberry": "red",
    "an elephant": "grey",
    "a flamingo": "pink",
}

DEFINITIONS = {
    "a doctor": "a person who helps sick people",
    "a baker": "a person who makes bread",
    "a farmer": "a person who grows food",
    "a teacher": "a person who helps others learn",
    "a sailor": "a person who works on a ship",
    "a hammer": "a tool for driving nails",
    "a clock": "a thing that shows the time",
    "a river": "water that flows to the sea",
    "a mountain": "a very high hill",
    "an island": "land with water all around it",
    "a forest": "a large place full of trees",
    "a library": "a place where books are kept",
    "a bridge": "a way over a river or a road",
    "a book": "many printed pages bound together",
    "a key": "a small thing that opens a lock",
    "a lamp": "a thing that gives light",
    "a boat": "a small ship",
    "a king": "a man who rules a country",
    "a song": "words set to music",
    "a map": "a picture of a place seen from above",
    "a token": "a small piece of text that a language model reads or writes",
    "a dragoman": "an interpreter and guide who speaks many languages",
}

SOUNDS = {
    "dog": "woof",
    "cat": "meow",
    "cow": "moo",
    "duck": "quack",
    "sheep": "baa",
    "pig": "oink",
    "owl": "hoot",
    "lion": "roar",
    "bee": "buzz",
    "frog": "croak",
    "mouse": "squeak",
    "horse": "neigh",
}

DAYS = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"]

MONTHS = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
]

PLURALS = {
    "cat": "cats",
    "dog": "dogs",
    "horse": "horses",
    "bird": "birds",
    "fox": "foxes",
    "mouse": "mice",
    "goose": "geese",
    "child": "children",
    "man": "men",
    "woman": "women",
    "baby": "babies",
    "city": "cities",
    "box": "boxes",
    "leaf": "leaves",
    "wolf": "wolves",
    "foot": "feet",
    "tooth": "teeth",
    "sheep": "sheep",
    "fish": "fish",
    "apple": "apples",
    "book": "books",
    "tree": "trees",
    "house": "houses",
    "bus": "buses",
}

VERBS = [
    # base, third person, past
    ("play", "plays", "played"),
    ("watch", "watches", "watched"),
    ("like", "likes", "liked"),
    ("see", "sees", "saw"),
    ("find", "finds", "found"),
    ("carry", "carries", "carried"),
    ("draw", "draws", "drew"),
    ("buy", "buys", "bought"),
    ("wash", "washes", "washed"),
    ("paint", "paints", "painted"),
    ("follow", "follows", "followed"),
    ("bring", "brings", "brought"),
    ("know", "knows", "knew"),
    ("need", "needs", "needed"),
    ("want", "wants", "wanted"),
    ("take", "takes", "took"),
]

OBJECTS = (
    "the ball|a red apple|the old house|the garden|a long letter|the blue car|a small boat|the green door|two books|"
    "the key|a warm coat|the big tree|the little dog|some bread|the lamp|a new hat"
).split("|")

SUBJECT_NOUNS = ["cat", "dog", "bird", "fox", "child", "man", "woman", "baby", "wolf", "mouse", "boy", "girl"]

JOBS = "doctor baker teacher farmer painter sailor cook singer driver writer gardener nurse".split()

THINGS = "apples pears eggs coins books cups stamps shells flowers balls pencils cakes".split()

ITEM_PRICES = {"bread": 3, "milk": 2, "cheese": 6, "coffee": 8, "tea": 5, "rice": 4, "soap": 1, "honey": 7}

STORY_ANIMALS = "fox bear mouse rabbit owl cat dog frog duck hedgehog squirrel goat horse hen wolf".split()

ANIMAL_NAMES = "Pip Momo Tilly Bruno Lulu Rex Nana Finn Coco Otto Daisy Max Luna Toby Mila Hugo".split()
