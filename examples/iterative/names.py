"""Names of some well-known products of the shop; the log contains only their codes."""

NAMES = {
    "20719": "woodland charlotte bag",
    "20724": "red retrospot charlotte bag",
    "20725": "lunch bag red retrospot",
    "20726": "lunch bag woodland",
    "20727": "lunch bag black skull",
    "20728": "lunch bag cars blue",
    "21034": "rex cash+carry jumbo shopper",
    "21212": "pack of 72 retrospot cake cases",
    "21790": "vintage snap cards",
    "21931": "jumbo storage bag suki",
    "22086": "paper chain kit 50's christmas",
    "22138": "baking set 9 piece retrospot",
    "22355": "charlotte bag suki design",
    "22382": "lunch bag spaceboy design",
    "22383": "lunch bag suki design",
    "22384": "lunch bag pink polkadot",
    "22386": "jumbo bag pink polkadot",
    "22411": "jumbo shopper vintage red paisley",
    "22423": "regency cakestand 3 tier",
    "22457": "natural slate heart chalkboard",
    "22469": "heart of wicker small",
    "22470": "heart of wicker large",
    "22697": "green regency teacup and saucer",
    "22698": "pink regency teacup and saucer",
    "22699": "roses regency teacup and saucer",
    "22720": "set of 3 cake tins pantry design",
    "22726": "alarm clock bakelike green",
    "22727": "alarm clock bakelike red",
    "22728": "alarm clock bakelike pink",
    "22960": "jam making set with jars",
    "22961": "jam making set printed",
    "23203": "jumbo bag vintage doily",
    "23298": "spotty bunting",
    "47566": "party bunting",
    "84879": "assorted colour bird ornament",
    "85099B": "jumbo bag red retrospot",
    "85123A": "white hanging heart t-light holder",
}


def named(code: str) -> str:
    """Return a product's code, with its name if known."""
    return f"{code} {NAMES[code]}" if code in NAMES else code
