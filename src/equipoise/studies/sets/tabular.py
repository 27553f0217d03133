"""The tabular data of the paper, rows and columns as in its table: three published tables and two simulations.

Adult (Census Income): does a person earn over 50,000 dollars a year? Protected: sex. Bank Marketing: does a client subscribe to a term
deposit? Protected: age. COMPAS (ProPublica): is a defendant charged again within two years? Protected: race. The published file of COMPAS
names people. Only the columns below are ever parsed, hashed or written; names, birth dates and case numbers are not among them.

The simulations have adjustable bias (Appendix C of the paper): Loh, Cao and Zhou 2019, and Zafar et al. 2017 in many dimensions. The paper
leaves three things open. Loh's X6 takes the values 1 to 10, as in the original. The weights of Zafar's random network are those of the
published code (`mapping="low-rank"`): three matrices with a bell-shaped singular profile of effective rank 50, no biases, drawn with
labels, points and A from one seed in the published order, so that seed 42 gives the published data set. `mapping="gaussian"` draws weights
and biases with variance 1 / fan-in, so that values neither vanish nor explode. A is an input of both simulations by default, as in the
published experiments.
"""

import itertools
from io import BytesIO
from numbers import Integral, Real
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from equipoise.data import Attribute, Cohort, FeatureTable, FloatArray, IntArray
from equipoise.disk import read_bytes
from equipoise.errors import BadInput, did_you_mean, raise_all
from equipoise.studies.sets import File, Recipe, locate, number_problems

UCI = "https://archive.ics.uci.edu/ml/machine-learning-databases"
ADULT_NUMBERS = ["age", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
ADULT_CATEGORIES = ["workclass", "education", "marital-status", "occupation", "relationship", "native-country"]
ADULT_COLUMNS = [
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race", "sex",
    "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
]  # fmt: skip
BANK_FILE = "bank-additional-full.csv"
BANK_CATEGORIES = ["job", "marital", "education", "default", "housing", "loan", "contact", "month", "day_of_week", "poutcome"]
OLDER, YOUNGER = "25 and over", "under 25"
PROPUBLICA = "https://raw.githubusercontent.com/propublica/compas-analysis/bafff5da3f2e45eca6c2d5055faad269defd135a"
COMPAS_FILE = "compas-scores-two-years.csv"
COMPAS_COUNTS = ["age", "juv_fel_count", "juv_misd_count", "juv_other_count", "priors_count"]
COMPAS_CATEGORIES = ["age_cat", "c_charge_degree", "c_charge_desc"]
COMPAS_INPUTS = [*COMPAS_COUNTS, *COMPAS_CATEGORIES, "sex", "race"]
# The columns that are read: inputs, the label, and three that only decide which rows are kept.
COMPAS_COLUMNS: dict[str, str] = {
    **dict.fromkeys([*COMPAS_CATEGORIES, "sex", "race", "score_text"], "str"),
    **dict.fromkeys([*COMPAS_COUNTS, "days_b_screening_arrest", "is_recid", "two_year_recid"], "Int64"),
}
WHITE, OTHER = "Caucasian", "not Caucasian"
LOH_NORMAL = ["X1", "X2", "X3", "X7", "X8", "X9", "X10"]  # Loh's standard normal features
ZAFAR_MEANS = np.array([[-2.0, -2.0], [2.0, 2.0]])  # Zafar's plane, one row per label
ZAFAR_COVARIANCES = np.array([[[10.0, 1.0], [1.0, 3.0]], [[5.0, 1.0], [1.0, 5.0]]])
ZAFAR_MAPPINGS = ("low-rank", "gaussian")
ZAFAR_RANK = 50  # of the published matrices


def _original(root: Path, name: str) -> BytesIO:
    """The content of an original file, plain or gzipped."""
    return BytesIO(read_bytes(locate(root, name) or root / name))


def _published(name: str, features: pd.DataFrame, label: npt.ArrayLike, attribute: Attribute, attribute_as_input: bool) -> Cohort:
    """The cohort of a published table. The index, the position of each row in the original file, becomes its id."""
    ids = features.index.to_numpy(dtype=object)
    features = features.astype(float).reset_index(drop=True)
    if not attribute_as_input:
        features = features.drop(columns=attribute.name)
    return Cohort(FeatureTable(features), np.asarray(label, dtype=np.int64), (attribute,), None, ids, name=name)


def adult(root: Path, *, attribute_as_input: bool = True) -> Cohort:
    """45,222 people with 98 features (97 without sex), from the folder that holds adult.data and adult.test.

    Rows with a missing value and the census weight are left out. An id is the row's position in adult.data followed by adult.test.
    """
    used = [column for column in ADULT_COLUMNS if column != "fnlwgt"]
    form = {"names": ADULT_COLUMNS, "usecols": used, "skipinitialspace": True, "na_values": ["?"]}
    # The first line of adult.test is a note, "|1x3 Cross validator".
    tables = [pd.read_csv(_original(root, name), skiprows=skipped, **form) for name, skipped in (("adult.data", 0), ("adult.test", 1))]
    frame = pd.concat(tables, ignore_index=True).dropna()
    binary = pd.DataFrame({"race": frame["race"] == "White", "sex": frame["sex"] == "Male"})
    levels = pd.get_dummies(frame[ADULT_CATEGORIES], prefix_sep="=", dtype=float)
    label = frame["income"].str.rstrip(".") == ">50K"  # labels of adult.test end with a dot, those of adult.data do not
    sex = Attribute.of(frame["sex"], name="sex", reference="Male")
    return _published("adult", pd.concat([frame[ADULT_NUMBERS], binary, levels], axis=1), label, sex, attribute_as_input)


def bank(root: Path, *, attribute_as_input: bool = True) -> Cohort:
    """30,488 phone calls with 57 features (56 without age), from the folder that holds bank-additional-full.csv.

    Rows with an unknown value are left out. Age is a feature only as "25 or over". An id is the row's position in the file.
    """
    frame = pd.read_csv(_original(root, BANK_FILE), sep=";", na_values=["unknown"]).dropna()
    older = frame["age"] >= 25
    features = pd.get_dummies(frame.assign(age=older).drop(columns="y"), columns=BANK_CATEGORIES, prefix_sep="=", dtype=float)
    age = Attribute.of(np.where(older, OLDER, YOUNGER), name="age", reference=OLDER)
    return _published("bank", features, frame["y"] == "yes", age, attribute_as_input)


def compas(root: Path, *, attribute_as_input: bool = True) -> Cohort:
    """6,167 defendants with 401 features (400 without race), from the folder that holds compas-scores-two-years.csv.

    Rows are kept if the arrest was within 30 days of the screening, the outcome is known, the charge is not an ordinary traffic
    offence and there is a score. An id is the row's position in the file.
    """
    frame = read_compas(_original(root, COMPAS_FILE).getvalue())
    kept = (
        frame["days_b_screening_arrest"].between(-30, 30).fillna(False)
        & (frame["is_recid"] != -1)
        & (frame["c_charge_degree"] != "O")
        & frame["score_text"].notna()  # "N/A" in the file, which pandas reads as missing
    )
    frame = frame[kept].dropna(subset=[*COMPAS_INPUTS, "two_year_recid"])
    binary = pd.DataFrame({"sex": frame["sex"] == "Female", "race": frame["race"] == WHITE})
    levels = pd.get_dummies(frame[COMPAS_CATEGORIES], prefix_sep="=", dtype=float)
    race = Attribute.of(np.where(frame["race"] == WHITE, WHITE, OTHER), name="race", reference=WHITE)
    features = pd.concat([frame[COMPAS_COUNTS], binary, levels], axis=1)
    return _published("compas", features, frame["two_year_recid"] == 1, race, attribute_as_input)


def read_compas(content: bytes) -> pd.DataFrame:
    """The needed columns and no others, in the same order and type for every copy of the file."""
    try:
        header = pd.read_csv(BytesIO(content), nrows=0).columns
        if absent := [name for name in COMPAS_COLUMNS if name not in header]:
            raise BadInput(f"{COMPAS_FILE} has no column {', '.join(map(repr, absent))}; it must be ProPublica's file of 7,214 rows")
        frame = pd.read_csv(BytesIO(content), usecols=list(COMPAS_COLUMNS), dtype=COMPAS_COLUMNS)[list(COMPAS_COLUMNS)]
    except BadInput:
        raise
    except (ValueError, TypeError) as error:
        raise BadInput(f"{COMPAS_FILE} cannot be read: {error}") from error
    texts = [name for name, kind in COMPAS_COLUMNS.items() if kind == "str"]
    return frame.assign(**{name: frame[name].str.strip() for name in texts})


def anonymous(content: bytes) -> bytes:
    """The needed columns as CSV: the same bytes for every copy of the file, with or without the columns that identify people."""
    text: str = read_compas(content).to_csv(index=False, lineterminator="\n")
    return text.encode()


def loh(n: int = 30_000, *, alpha: float = 1.0, seed: int = 0, attribute_as_input: bool = True) -> Cohort:
    """n rows with a label that depends on A through an interaction with X6 of strength alpha.

    X5 and X6 are one-hot (2 + 10 columns), next to 8 numbers. X is independent of A, so a network without A among its inputs has no
    gap: leave `attribute_as_input` on to study bias. For one seed, X, A and the random numbers behind Y are the same for every alpha.

    >>> len(loh(100)), loh(100).inputs.shape[1], loh(100, attribute_as_input=False).inputs.shape[1]
    (100, 21, 20)
    """
    problems = number_problems(Integral, n=(n, 10, np.inf), seed=(seed, 0, np.inf))
    raise_all(problems + number_problems(Real, alpha=(alpha, 0, np.inf)), source="loh")
    features = loh_features(n, seed)
    a = _rng(seed, "loh attribute").integers(0, 2, n)
    y = (_rng(seed, "loh label").random(n) < _sigmoid(loh_logit(features, a, alpha))).astype(np.int64)
    coded = features.assign(X5=pd.Categorical(features["X5"], range(2)), X6=pd.Categorical(features["X6"], range(1, 11)))
    inputs = pd.get_dummies(coded, columns=["X5", "X6"], prefix_sep="=", dtype=float)
    return _simulated(inputs, y, a, attribute_as_input, "loh")


def loh_features(n: int, seed: int) -> pd.DataFrame:
    """X1 to X10, with categories as integers."""
    rng = _rng(seed, "loh features")
    correlation = np.eye(len(LOH_NORMAL))
    for block in (slice(1, 3), slice(3, 7)):  # X2 with X3; X7 to X10 among themselves
        correlation[block, block] = 0.5 + 0.5 * np.eye(block.stop - block.start)
    normal = rng.multivariate_normal(np.zeros(len(LOH_NORMAL)), correlation, size=n, method="cholesky")
    features = pd.DataFrame(normal, columns=LOH_NORMAL).assign(
        X4=rng.exponential(1.0, n),
        X5=rng.integers(0, 2, n),
        X6=rng.integers(1, 11, n),
    )
    return features[[f"X{j}" for j in range(1, 11)]]


def loh_logit(features: pd.DataFrame, a: IntArray, alpha: float) -> FloatArray:
    """The log odds of Y = 1, row by row."""
    plain = 0.5 * (features["X1"] + features["X2"] - features["X5"])
    odd = features["X6"] % 2 == 1
    return np.asarray(plain + 2.0 * alpha * a * odd, dtype=np.float64)


def zafar(
    n: int = 30_000,
    *,
    vartheta: float = 1.0,
    clockwise: bool = False,
    seed: int = 0,
    width: int = 100,
    features: int = 500,
    mapping: str = "low-rank",
    attribute_as_input: bool = True,
) -> Cohort:
    """n rows of a random network's outputs on two Gaussian classes; the closer vartheta is to 0, the more A depends on the class.

    The points are rotated by vartheta before A is drawn, as in the paper's text. `clockwise` rotates them in the other direction, as the
    published code does; only this reproduces the paper's sensitivity table. `mapping` is the random network: "low-rank" (published) or
    "gaussian". For one seed, X, Y, the network and the random numbers behind A are the same for every vartheta.

    >>> zafar(100, features=7).inputs.shape[1], zafar(100, features=7, attribute_as_input=False).inputs.shape[1]
    (8, 7)
    """
    whole = {"n": (n, 10, np.inf), "seed": (seed, 0, np.inf), "width": (width, 1, np.inf), "features": (features, 1, np.inf)}
    problems = number_problems(Integral, **whole) + number_problems(Real, vartheta=(vartheta, -1e6, 1e6))
    if mapping not in ZAFAR_MAPPINGS:
        problems.append(f"mapping must be one of {', '.join(ZAFAR_MAPPINGS)}; got {mapping!r}.{did_you_mean(mapping, ZAFAR_MAPPINGS)}")
    raise_all(problems, source="zafar")
    if mapping == "low-rank":
        plane, y, uniform, x = low_rank_draws(n, width, features, seed)
    else:  # separate generators, through a network with Gaussian weights and biases
        plane, y = zafar_plane(n, seed)
        uniform, x = _rng(seed, "zafar attribute").random(n), zafar_network(plane, width, features, seed)
    a = (uniform < zafar_chance(plane, -vartheta if clockwise else vartheta)).astype(np.int64)
    # Single precision: it halves the published table to 60 MB, and networks use float32 anyway.
    inputs = pd.DataFrame(x.astype(np.float32), columns=[f"X{j}" for j in range(1, features + 1)])
    return _simulated(inputs, y, a, attribute_as_input, "zafar")


def low_rank_draws(n: int, width: int, features: int, seed: int) -> tuple[FloatArray, IntArray, FloatArray, FloatArray]:
    """The published draws, the same for every vartheta: points (n, 2), labels, a uniform number for A, and inputs (n, features).

    Labels, points, uniform numbers and three low-rank matrices come from one generator, in this order.
    """
    from sklearn.datasets import make_low_rank_matrix  # late: it takes a second to import

    state = np.random.RandomState(seed)
    y = (state.random_sample(n) >= 0.5).astype(np.int64)
    plane = np.empty((n, 2))
    for label in (0, 1):
        rows = y == label
        plane[rows] = state.multivariate_normal(ZAFAR_MEANS[label], ZAFAR_COVARIANCES[label], size=int(rows.sum()))
    uniform = 1.0 - state.random_sample(n)  # the published code sets A = 1 above the probability of A = 0
    sizes = itertools.pairwise((2, width, width, features))
    first, second, last = (make_low_rank_matrix(a, b, effective_rank=ZAFAR_RANK, random_state=state) for a, b in sizes)
    x = np.maximum(np.maximum(plane @ first, 0.0) @ second, 0.0) @ last
    return plane, y, uniform, x


def zafar_plane(n: int, seed: int) -> tuple[FloatArray, IntArray]:
    """The points in the plane (n, 2) and their labels."""
    y = _rng(seed, "zafar label").integers(0, 2, n)
    normal = _rng(seed, "zafar plane").standard_normal((n, 2))
    factors = np.linalg.cholesky(ZAFAR_COVARIANCES)
    return ZAFAR_MEANS[y] + np.einsum("nij,nj->ni", factors[y], normal), y


def zafar_chance(plane: FloatArray, vartheta: float) -> FloatArray:
    """The probability of A = 1: p(x | Y = 1) / (p(x | Y = 0) + p(x | Y = 1)) at the rotated point x."""
    rotation = np.array([[np.cos(vartheta), -np.sin(vartheta)], [np.sin(vartheta), np.cos(vartheta)]])
    away = (plane @ rotation.T)[:, None, :] - ZAFAR_MEANS  # (n, label, 2)
    distance: FloatArray = np.einsum("nyi,yij,nyj->ny", away, np.linalg.inv(ZAFAR_COVARIANCES), away)
    logs = -0.5 * (distance + np.log(np.linalg.det(ZAFAR_COVARIANCES)))
    return _sigmoid(logs[:, 1] - logs[:, 0])


def zafar_network(plane: FloatArray, width: int, features: int, seed: int) -> FloatArray:
    """The outputs (n, features) of a random network with two hidden layers, Gaussian weights and biases."""
    rng, x = _rng(seed, "zafar network"), plane
    for layer, fan_out in enumerate((width, width, features)):
        x, fan_in = np.maximum(x, 0.0) if layer else plane, x.shape[1]
        theta = rng.standard_normal((fan_out, fan_in)) / np.sqrt(fan_in)
        b = rng.standard_normal(fan_out) / np.sqrt(fan_in)
        x = np.asarray(x @ theta.T + b)
    return x


def _simulated(inputs: pd.DataFrame, y: IntArray, a: IntArray, attribute_as_input: bool, name: str) -> Cohort:
    if attribute_as_input:
        inputs = inputs.assign(A=a.astype(float))
    # Not Attribute.of: a very small sample may lack a group, which the measures report.
    return Cohort(FeatureTable(inputs), y, (Attribute("A", ("A=1", "A=0"), 1 - a),), name=name)


def _rng(seed: int, purpose: str) -> np.random.Generator:
    """The random generator of one purpose. Not `splits.generator`, which would give other data for the same seed."""
    return np.random.default_rng([seed, *purpose.encode()])


def _sigmoid(x: FloatArray) -> FloatArray:
    """1 / (1 + exp(-x)) without overflow; importing scipy for it would take a fifth of a second."""
    return np.asarray(0.5 * (1 + np.tanh(0.5 * x)))


TABULAR = (
    Recipe(
        name="adult",
        load=adult,
        files=(
            File("adult.data", "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d", f"{UCI}/adult/adult.data"),
            File("adult.test", "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05", f"{UCI}/adult/adult.test"),
        ),
        attribute="sex",
        description="US census 1994: who earns over 50,000 dollars a year",
        citation="Becker and Kohavi, Adult, UCI Machine Learning Repository, 1996, doi:10.24432/C5XW20",
        licence="CC BY 4.0",
        rows=45_222,
        features=98,
        paper="45,222 x 98",
    ),
    Recipe(
        name="bank",
        load=bank,
        files=(
            File(
                BANK_FILE,
                "74adfc578bf77a7ff4bb1ba4a9f8709d9e3c6907342959c2c8416847e0afb4d8",
                f"{UCI}/00222/bank-additional.zip",
                member="bank-additional/bank-additional-full.csv",
            ),
        ),
        attribute="age",
        description="Portuguese bank 2008-2010: who subscribes to a term deposit when called",
        citation="Moro, Cortez and Rita, Decision Support Systems 62:22-31, 2014, doi:10.24432/C5K306",
        licence="CC BY 4.0",
        rows=30_488,
        features=57,
        paper="30,488 x 57",
    ),
    Recipe(
        name="compas",
        load=compas,
        files=(
            File(
                COMPAS_FILE,
                "98de31c0d69f9bc205913c0293b4c52f7f8570b7368a9d4072dc38616f01c99a",
                f"{PROPUBLICA}/compas-scores-two-years.csv",
                canonical=anonymous,
            ),
        ),
        attribute="race",
        description="Broward County 2013-2014: which defendants are charged again within two years",
        citation="Angwin, Larson, Mattu and Kirchner, Machine Bias, ProPublica, 2016",
        licence="none stated (public records, published by ProPublica)",
        rows=6_167,
        features=401,
        paper="6,167 x 401",
    ),
    Recipe(
        name="loh",
        load=loh,
        attribute="A",
        description="simulated: the label depends on A through an interaction of strength alpha",
        citation="Loh, Cao and Zhou, WIREs Data Mining and Knowledge Discovery 9(5), 2019",
        rows=30_000,
        features=21,
    ),
    Recipe(
        name="zafar",
        load=zafar,
        attribute="A",
        description="simulated: two Gaussian classes seen through a random network, A tied to the label by an angle",
        citation="Zafar, Valera, Gomez Rodriguez and Gummadi, AISTATS, PMLR 54:962-970, 2017",
        rows=30_000,
        features=501,
    ),
)
